"""What a subject declares about itself: the conventions that right implementations disagree on.

A convention is neither right nor wrong; a subject that declares one is held to it. A field left at None was
not declared: then what the function's signature accepts is what it supports, and it is held to the
documented behaviour of the torch function that it imitates.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Literal, Self

from headcheck.arithmetic import MODELS, Arithmetic
from headcheck.choices import choices_of
from headcheck.errors import SubjectError
from headcheck.reference.masks import Alignment

EmptyRows = Literal["zeros", "mean", "nan", "undefined"]

ALIASES: Mapping[str, tuple[str, ...]] = {
    "attn_mask": ("attn_mask", "mask", "attention_mask", "attn_bias"),
    "dropout_p": ("dropout_p", "dropout", "p"),
    "training": ("training",),
    "is_causal": ("is_causal", "causal"),
    "scale": ("scale", "softmax_scale", "sm_scale", "scaling"),
    "enable_gqa": ("enable_gqa",),
    "window": ("window", "window_size"),
    "softcap": ("softcap", "soft_cap", "logits_soft_cap"),
    "sinks": ("sinks", "s_aux", "learnable_sink"),
    "alibi_slopes": ("alibi_slopes",),
    "key_lengths": (
        *(
            "key_lengths",
            "key_lens",
            "kv_lengths",
            "kv_lens",
            "kv_seqlens",
            "kv_seq_lens",
            "seqlens_k",
            "seqused_k",
        ),
        *("valid_lens", "valid_len", "valid_lengths", "key_value_seq_lengths", "seq_len_kv"),
        *(
            "cache_seqlens",
            "context_lens",
            "context_lengths",
            "seq_lens",
            "seqlens",
            "seq_lengths",
            "lengths",
            "lens",
        ),
    ),
    "return_lse": ("return_lse", "return_softmax_lse", "return_attn_probs"),
    "return_weights": ("return_weights",),
    "cu_seqlens_q": ("cu_seqlens_q", "cu_seq_q", "cu_seqlens"),
    "cu_seqlens_k": ("cu_seqlens_k", "cu_seqlens_kv", "cu_seq_k"),
    "max_seqlen_q": ("max_seqlen_q", "max_q", "max_seqlen"),
    "max_seqlen_k": ("max_seqlen_k", "max_seqlen_kv", "max_k"),
}
"""Each optional argument of the canonical call, and the parameter names by which a signature is read."""

ADDED = "attn_bias"
"""The name of a mask that is added to the scores, whatever it holds: undeclared, it is given no booleans."""
PACKED = "thd"
"""The layout in which the tokens of all sequences stand on one axis."""
MERGED = "(hd)"
"""The end of the layout of an output that holds all heads on one axis, one after another."""
ALWAYS = ("is_causal", "scale", "softcap", "window")
"""What every call of a function may have without an argument for it."""
ONE_QUERY = "one-query"
"""What `rectangular` says where q_len is kv_len, or one."""
ONLY_ONE_QUERY = "only-one-query"
"""The same where q_len is one in every call, as of kernels for decoding."""
NO_MORE_QUERIES = "no-more-queries"
"""The same where q_len is at most kv_len."""
BASE_2 = "base-2"
"""A log-sum-exp that is divided by log 2."""
RETURNED = ("output", "weights", "log_sum_exp", "other")
"""What a call may return."""
BROADCAST_SHAPES = ("bhqk", "1hqk", "b1qk", "11qk", "b11k", "bh1k", "bhq1", "hqk", "qk")
"""Shapes of a mask that torch broadcasts to (batch, heads, q_len, kv_len): 1 is an axis of one, others are left out."""
MASK_SHAPES = (*BROADCAST_SHAPES, "bqk", "bk", "b1k")
"""Shapes of a mask: those, and three that leave out axes between others."""
FOUR_AXES = tuple(shape for shape in MASK_SHAPES if len(shape) == len("bhqk"))
"""Shapes of a mask that leave out no axis."""
DTYPES = ("float32", "float64", "bfloat16", "float16")
LOW_PRECISION = ("bfloat16", "float16")


@dataclass(frozen=True, kw_only=True)
class _Common:
    gradients: bool | None = None
    """True is held to work, False claims none, None is read off some calls, and holds for all."""
    deterministic: bool = True
    """Whether the same call gives the same bits; if not, equal means within the bounds."""
    dtypes: tuple[str, ...] | None = None
    """What it works in, each held to work; None: those that are tried and work."""
    devices: tuple[str, ...] = ("cpu",)
    """Where it works; the first is taken unless --device says otherwise."""
    arithmetic: str | Arithmetic | Mapping[str, str | Arithmetic] | None = None
    """How the implementation rounds, for all dtypes or by dtype (see `headcheck.arithmetic`)."""
    arguments: Mapping[str, str] = field(default_factory=dict)
    """Canonical argument name -> the name by which this function takes it."""
    effort: float = 1.0
    """The share of each law's examples to spend, for a subject whose every call is slow."""
    may_refuse: bool = False
    """Whether what it raises by itself, such as NotImplementedError or a ValueError, refuses a call that it is not made
    for, whatever the call asks for, as of a kernel that takes some shapes only. Such a call is not applicable."""
    notes: str = ""
    """For readers of the verdict."""


@dataclass(frozen=True)
class Declaration(_Common):
    """A function with its conventions: what the declarations of all roles have in common.

    A role's own declaration is a frozen dataclass under this one with the role's name as `role` and a field for each
    convention. What a field may be is read off its type, where that names literals.
    """

    function: Callable[..., Any]
    name: str = ""

    role = ""
    ALLOWED: ClassVar[Mapping[str, tuple[object, ...]]] = {}
    """Field -> what it may be, where its type does not say it."""
    EACH: ClassVar[Mapping[str, tuple[object, ...]]] = {}
    """Field that holds several -> what each of them may be."""
    ARGUMENTS: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """Each optional argument of the canonical call, and the parameter names by which a signature is read."""

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise SubjectError(f"{type(self).__name__} takes a callable, not {type(self.function).__name__}")
        declaration: Any = type(self)  # To mypy the type of a dataclass is not hashable.
        for convention, allowed in {**choices_of(declaration), **self.ALLOWED}.items():
            require_one_of(convention, getattr(self, convention), allowed)
        for several in ("dtypes", "devices", *self.EACH):
            if isinstance(given := getattr(self, several), str):
                raise SubjectError(f"{several}={given!r} holds several: write {several}=({given!r},)")
        for several, allowed in {"dtypes": DTYPES, **self.EACH}.items():
            for each in getattr(self, several) or ():
                require_one_of(several, each, allowed)
        _require_devices_and_effort(self.devices, self.effort)
        _require_known_models(self.arithmetic)
        for argument in self.arguments:
            require_one_of("arguments", argument, tuple(self.ARGUMENTS))
        if not self.name:
            object.__setattr__(self, "name", name_of(self.function))

    def but(self, **changes: Any) -> Self:
        """The same declaration with some fields changed."""
        return replace(self, **changes)

    def summary(self) -> dict[str, Any]:
        """The conventions as plain data, for the verdict; fields at their default are left out."""
        plain: dict[str, Any] = {}
        for each in fields(self):
            value = getattr(self, each.name)
            if each.name in ("function", "name") or value in (each.default, {}, ""):
                continue
            plain[each.name] = _plain(value)
        return plain


@dataclass(frozen=True, kw_only=True)
class _Conventions(_Common):
    layout: str = "bhsd"
    """The order of the axes batch, heads, sequence and dim in query, key, value and output, such as 'bshd' or 'sbhd';
    'bsd', 'hsd' or 'sd' where there is no axis for heads, for a batch, or for either. Or 'thd': the tokens of all
    sequences on one axis, with cu_seqlens_q and cu_seqlens_k that say where each begins (variable lengths)."""
    output_layout: str | None = None
    """The same of the output alone, where it is another: 'bshd' as transformers' functions have it, 'bs(hd)' where all
    heads stand on the last axis; None: the same."""
    always: Mapping[str, bool | float | tuple[int | None, int | None]] = field(default_factory=dict)
    """What every call has and no argument says, of is_causal, scale, softcap and window: always.is_causal=True for a
    function that is causal in every call, always.scale=1.0 for one that does not scale. No such argument is given."""
    any_strides: bool | None = None
    """Whether query, key and value may have a last axis whose stride is not 1; they may, where a plain call does not
    refuse it in so many words."""
    contiguous: bool | None = None
    """Whether query, key and value have to be contiguous; they need not, where a plain call does not refuse others in so
    many words."""
    mask_shapes: tuple[str, ...] | None = None
    """In which shapes attn_mask may come: 'bhqk' is (batch, heads, q_len, kv_len), a 1 is an axis of one, and a letter
    left out is an axis left out; 'bk' is a mask of the keys (batch, kv_len). None: all that torch broadcasts, but for
    those that plain calls refuse, and those of two or three axes that fail in the plainest call, of one sequence."""
    true_means: Literal["keep", "block"] = "keep"
    """What True says in a boolean mask: the key is kept, or it is blocked."""
    causal: Alignment | Literal[False] | None = None
    """Where the diagonal stands when q_len differs from kv_len; False: no is_causal."""
    empty_rows: EmptyRows | None = None
    """What a query that may attend to nothing gives: zeros, the mean of all values, NaN; 'undefined' claims
    nothing, of the other heads of that query neither. None: zeros, and if not, other laws avoid such rows."""
    masks: tuple[str, ...] | None = None
    """The kinds of attn_mask: 'boolean', 'additive'; () for none. None: both, but for a kind that plain calls refuse, or
    that they read as the other kind, where the argument has another name than torch's."""
    mask_with_causal: Literal["and", "refused"] | None = None
    """What both together do; None: they compose or are refused, never is one dropped."""
    masked_nan: Literal["stopped", "leaks"] = "leaks"
    """Whether NaN in a masked key or value is kept from the output; 0 x NaN leaks in most."""
    nan_scores: Literal["propagate", "may-vanish"] = "propagate"
    """Whether a query with NaN scores gives NaN, or may give zeros as if it had no keys."""
    scale_with_causal: Literal["any", "positive"] | None = None
    """Whether is_causal works for every scale, or for one above zero only; None: one law asks, others avoid it."""
    grouped_heads: Literal["interleaved", "tiled", False] | None = None
    """Which key head a query head reads when there are fewer key heads."""
    head_dims: tuple[int, ...] | None = None
    """The head dims that it takes, and of value; None: all, but those that plain calls refuse in so many words."""
    length_multiple: int | None = None
    """What q_len and kv_len have to be a multiple of; None: 1, but for what plain calls refuse in so many words."""
    max_length: int | None = None
    """The most queries, and the most keys, that it takes; None: any, but for what plain calls refuse in so many words."""
    spare_tokens: bool = True
    """Whether tokens may stand behind the last sequence of a pack, as in buffers of a fixed size; of layout='thd'."""
    value_dim: bool | None = None
    """Whether value's dim may differ from head_dim; None: yes, if a plain call does not refuse it in so many words."""
    rectangular: bool | Literal["one-query", "only-one-query", "no-more-queries"] | None = None
    """Whether q_len may differ from kv_len; one-query: where it is one, as in decoding, and else not; only-one-query: it
    is one in every call; no-more-queries: where it is less; None: yes, if a plain call does not refuse it in so many
    words."""
    scale: bool | None = None
    """`scale`, a number that multiplies the scores; left out, 1 / sqrt(head_dim). Of this and of the seven features
    below True is held to work, and None is read off the signature. False is held to raise; of `log_sum_exp`, `weights`
    and `grouped_heads` it is not asked for."""
    dropout: bool | None = None
    """`dropout_p`, the share of the weights that are dropped; what is kept is divided by 1 - dropout_p. Beside it
    `training`, where there is such an argument, is True, and False drops nothing."""
    window: bool | None = None
    """`window` (left, right): a query at position i, counted from where `causal` has the diagonal, sees the keys from
    i - left to i + right; None is without limit, in a parameter called window_size, or with a default of -1, -1 is."""
    softcap: bool | None = None
    """`softcap` c above 0: a score s, scaled, becomes c tanh(s / c) before masks, biases and ALiBi."""
    sinks: bool | None = None
    """`sinks` (heads,): one more score for each head, neither scaled nor capped, that counts in the sum of the softmax
    and has no value. It wants a gradient."""
    alibi: bool | None = None
    """`alibi_slopes` (heads,) in float32: slope x the distance from i to j is taken off the score of key j, i as for
    `window`."""
    log_sum_exp: bool | Literal["base-2"] | None = None
    """`return_lse`: (output, log-sum-exp) of all scores of a query and its sink, (batch, heads, q_len), without what
    dropout does. True: the natural one; base-2: divided by log 2."""
    log_sum_exp_layout: str | None = None
    """The order of its axes, where it is another: 'bsh' is (batch, q_len, heads), 'sh' that of layout='shd'."""
    empty_log_sum_exp: Literal["-inf", "inf"] = "-inf"
    """That of a query that may attend to nothing and has no sink: 'inf' as in flash-attention."""
    key_lengths: bool | None = None
    """`key_lengths` (batch,): how many keys each sequence has, the first ones; those behind them are none. int64, or
    int32 where the parameter is called as in kernels, cache_seqlens. With causal='bottom-right' the last query stands
    at the last of them. False: it is not asked for."""
    weights: bool | None = None
    """`return_weights`: (output, weights), (batch, heads, q_len, kv_len), as before dropout or as after it."""
    returns: tuple[str, ...] | None = None
    """What every call returns, where it is a tuple: 'output', 'weights', 'log_sum_exp', and 'other' for what is not
    judged. None: as a plain call shows."""
    autocast: bool | None = None
    """Whether it is held to work under torch.autocast; None: if a plain call does. Its output may then be in the
    dtype of the inputs or in that of the region."""
    mask_gradient: bool = True
    """Whether an additive mask may want a gradient, where gradients are there at all."""
    operator: str = ""
    """A part of the name of an operator, as torch's profiler shows it, that every call must run."""


@dataclass(frozen=True)
class Attention(Declaration, _Conventions):
    """An attention function with its conventions.

    function: f(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None,
    enable_gqa=False) -> output, tensors (batch, heads, length, dim) unless `layout` says otherwise; with
    return_lse=True -> (output, log_sum_exp), with return_weights=True -> (output, weights). With layout="thd":
    f(query, key, value, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, ...), as far as it takes them.
    """

    role = "attention"
    ARGUMENTS = ALIASES
    EACH: ClassVar = {"masks": ("boolean", "additive"), "mask_shapes": MASK_SHAPES, "returns": RETURNED}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.layout != PACKED and not _is_order(self.layout):
            raise SubjectError(
                f"layout {self.layout!r} is neither {PACKED!r} nor an order of the letters b, h, s and d, "
                "of which b and h may be left out"
            )
        if self.output_layout and not _is_order_of_output(self.output_layout, self.layout):
            raise SubjectError(
                f"output_layout={self.output_layout!r} is no order of the axes of layout={self.layout!r}, and none that "
                f"ends with all heads on one axis, as 'bs{MERGED}'"
            )
        order = self.log_sum_exp_layout
        if order and (self.layout == PACKED or sorted(order) != sorted(self.layout.replace("d", ""))):
            raise SubjectError(
                f"log_sum_exp_layout={order!r} is no order of the axes of layout={self.layout!r} but d"
            )
        for name, value in self.always.items():
            _require_always(name, value)
        if self.returns is not None and self.returns.count("output") != 1:
            raise SubjectError(
                f"returns={self.returns!r} names the output not once: returns=('output', 'weights')"
            )
        if self.mask_shapes == ():
            raise SubjectError("mask_shapes=() names no shape; masks=() says that there are no masks")
        dims: object = self.head_dims  # Whatever was written.
        if dims is not None and not (isinstance(dims, tuple) and dims and all(map(_counts, dims))):
            raise SubjectError(f"head_dims={dims!r} names no head dims: head_dims=(64, 128)")
        for name in ("length_multiple", "max_length"):
            if getattr(self, name) is not None and not _counts(getattr(self, name)):
                raise SubjectError(f"{name}={getattr(self, name)!r} is no whole number above zero")


def _is_order(layout: str) -> bool:
    """Whether a layout names each axis once, those of sequence and dim in any case."""
    return set("sd") <= set(layout) <= set("bhsd") and len(set(layout)) == len(layout)


def _is_order_of_output(output: str, layout: str) -> bool:
    """Whether an output has the axes of a layout, in whatever order, or its heads merged on the last axis."""
    axes = output.removesuffix(MERGED) + ("hd" if output.endswith(MERGED) else "")
    return layout != PACKED and sorted(axes) == sorted(layout)


def _require_always(name: str, value: object) -> None:
    """SubjectError: it is nothing that every call may have, or no value of it."""
    require_one_of("always", name, ALWAYS)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    sides = isinstance(value, tuple) and len(value) == len(("left", "right"))
    fits = {
        "is_causal": isinstance(value, bool),
        "scale": number,
        "softcap": number and isinstance(value, int | float) and value > 0,
        "window": sides
        and isinstance(value, tuple)
        and all(s is None or (isinstance(s, int) and s >= 0) for s in value),
    }[name]
    if not fits:
        cure = {"is_causal": "True", "scale": "1.0", "softcap": "30.0", "window": "(2, 0)"}[name]
        raise SubjectError(f"always={{{name!r}: {value!r}}} is no {name}; such as {{{name!r}: {cure}}}")


def _counts(size: object) -> bool:
    return isinstance(size, int) and size > 0


def name_of(function: Any) -> str:
    """What a callable is called: its own name, or that of its class."""
    return str(getattr(function, "__name__", type(function).__name__))


def _plain(value: Any) -> Any:
    """What another process can read without the subject's file: of a callable its name."""
    if isinstance(value, Mapping):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, tuple):
        return list(value)
    if isinstance(value, Arithmetic):
        return str(value)
    return name_of(value) if callable(value) else value


def require_one_of(what: str, got: object, allowed: tuple[object, ...]) -> None:
    """SubjectError: a convention is not one of those that headcheck knows."""
    if got not in allowed:
        choices = ", ".join(map(repr, allowed))
        raise SubjectError(f"{what}={got!r} is not a convention headcheck knows; choose one of {choices}")


def _require_devices_and_effort(devices: tuple[str, ...], effort: float) -> None:
    """SubjectError: there is no device, or no share of the examples."""
    if not devices:
        raise SubjectError("devices=() names no device; the first is taken unless --device says otherwise")
    if not effort > 0:
        raise SubjectError(f"effort={effort!r} is no share of the examples; 1.0 is all of them")


def _require_known_models(declared: str | Arithmetic | Mapping[str, str | Arithmetic] | None) -> None:
    """SubjectError: a model of arithmetic, or a dtype that one is declared for, has a name that is not known."""
    if not isinstance(declared, Mapping):
        declared = {} if declared is None else dict.fromkeys(DTYPES, declared)
    for dtype, model in declared.items():
        require_one_of("arithmetic", dtype, DTYPES)
        if isinstance(model, str):
            require_one_of("arithmetic", model, tuple(MODELS))
