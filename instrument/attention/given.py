"""Repairs: they bring a drawn case to where a law speaks, and leave the rest as it was drawn.

Each is a function from a case to a case, and does nothing to a case that is already there.
"""

from collections.abc import Callable

from headcheck.attention.case import Case
from headcheck.attention.patterns import DEAD_ROWS
from headcheck.given import RepairOfAny, at_least, at_most, having, one_of


def masked(case: Case) -> Case:
    """With an attn_mask that masks something, where there is room."""
    if case.mask in ("none", "all-true"):
        case = case.but(mask="random", is_causal=False)
    return case


_HIDING = ("padding", "left-padding", "dead-prefix", "last-key-only", "all-dead")


def hiding_keys(case: Case) -> Case:
    """With a mask that hides some keys from every query."""
    if case.mask in _HIDING:
        return case
    return case.but(mask=_HIDING[case.seed % len(_HIDING)], is_causal=False)


def hiding_something(case: Case) -> Case:
    """With a mask, the causal flag or a window: some key is hidden from some query."""
    return case if case.is_causal or case.window is not None else masked(case)


def boolean_mask(case: Case) -> Case:
    """With a boolean attn_mask."""
    return masked(case).but(mask_form="boolean")


def unmasked(case: Case) -> Case:
    """With neither attn_mask nor is_causal nor window: every query sees every key."""
    return case.but(mask="none", is_causal=False, window=None)


def no_mask(case: Case) -> Case:
    """Without attn_mask; the causal flag as drawn."""
    return case.but(mask="none")


def blind_to_order(case: Case) -> Case:
    """Without the causal flag, the window and ALiBi, whose meaning depends on the order of keys."""
    return case.but(is_causal=False, window=None, alibi=False)


def causal(case: Case) -> Case:
    """With the causal flag, and a mask beside it only if it was drawn so."""
    return case if case.is_causal else case.but(is_causal=True, mask="none")


def live_rows(case: Case) -> Case:
    """No mask pattern that leaves a query without keys."""
    case = case.but(mask="random") if case.mask in DEAD_ROWS else case
    return case.but(mask_axes="bhqk") if case.mask_axes == "bhq1" else case


def default_scale(case: Case) -> Case:
    """With no scale given."""
    return case.but(scale=None)


def no_negative_scale(case: Case) -> Case:
    """With a scale above zero, or none given."""
    return case if case.scale is None or case.scale > 0 else case.but(scale=None)


def without(*features: str) -> RepairOfAny:
    """None of the features named: 'sinks', 'softcap', 'alibi', 'window'."""
    off: dict[str, object] = {"sinks": False, "softcap": None, "alibi": False, "window": None}
    return having(**{feature: off[feature] for feature in features})


def long_rows(case: Case) -> Case:
    """With more than 1024 keys, and the other axes so small that it is affordable."""
    return at_most(batch=1, q_len=2, head_dim=4, value_dim=4)(at_least(kv_len=1025)(case))


def rare_lengths(case: Case) -> Case:
    """With lengths that hardly any other case has: what is done once for each size is done now."""
    small = at_most(batch=1, head_dim=8, value_dim=8)(case)
    return small.but(q_len=18 + case.seed % 43, kv_len=18 + case.seed // 43 % 47)


def without_keys_for_some(case: Case) -> Case:
    """With queries that may attend to nothing: masked from all keys, or before the first one if the last ones meet."""
    if case.seed % 2:
        return case if case.mask in DEAD_ROWS else case.but(mask="some-dead-rows", is_causal=False)
    if case.is_causal and case.q_len > case.kv_len:
        return case
    return causal(at_most(kv_len=33)(case).but(q_len=40))


def hiding_blocks(case: Case) -> Case:
    """With a mask that hides whole blocks, the first 140 of 200 keys, and the other axes small."""
    small = at_most(batch=1, q_len=5, head_dim=4, value_dim=4)(blind_to_order(case))
    return small.but(kv_len=200, mask="dead-prefix")


def beside_a_block(case: Case) -> Case:
    """With one key less than a block of 16, 32 or 64, as many, or one more."""
    return one_of("kv_len", 15, 16, 17, 31, 32, 33, 63, 64, 65)(case)


def alike(one: str, other: str) -> Callable[[Case], Case]:
    """With two axes of one size: alike("batch", "heads")."""

    def repair(case: Case) -> Case:
        size = min(getattr(case, one), getattr(case, other))
        changed = case.but(**{one: size, other: size})
        return changed.but(kv_heads=changed.heads) if changed.heads % changed.kv_heads else changed

    return repair


def wide_heads(case: Case) -> Case:
    """With a head_dim that kernels pad, and the other axes so small that it is affordable."""
    small = at_most(batch=1, q_len=5, kv_len=17)(case)
    return one_of("head_dim", 40, 72, 80, 96, 112, 136, 192, 256)(small)


def of_one_projection(case: Case) -> Case:
    """With query, key and value of one form, which lie in the memory of the one projection that made them."""
    length, heads = min(case.q_len, case.kv_len), case.kv_heads
    return case.but(q_len=length, kv_len=length, heads=heads, value_dim=case.head_dim, strides="projected")


def thousands_of_numbers(case: Case) -> Case:
    """With 4,096 numbers or more in query, key and value, of a head_dim whose root is no power of two."""
    lengths = {"q_len": 97, "kv_len": 97} if case.seed % 2 else {"q_len": 70, "kv_len": 64}
    wide = case.but(batch=1, heads=case.kv_heads, head_dim=72, value_dim=72, strides="contiguous", **lengths)
    return at_most(heads=2, kv_heads=2)(wide)


REAL_SIZES = (
    {"q_len": 130, "kv_len": 130, "head_dim": 128},
    {"heads": 32, "q_len": 1, "kv_len": 40, "head_dim": 16},
    {"q_len": 1, "kv_len": 1100, "head_dim": 64},
    {"q_len": 70, "kv_len": 200, "head_dim": 64},
    {"q_len": 200, "kv_len": 96, "head_dim": 128},
    {"heads": 71, "q_len": 1, "kv_len": 17, "head_dim": 8},
    {"q_len": 2, "kv_len": 1500, "head_dim": 128},
    {"q_len": 70, "kv_len": 140, "head_dim": 192},
    {"heads": 24, "q_len": 1, "kv_len": 70, "head_dim": 64},
    {"q_len": 129, "kv_len": 257, "head_dim": 256},
)
"""What no drawn case has at once, as it would be dear; one head where they say no more, and one key head."""


def real_sizes(case: Case) -> Case:
    """With axes as real models have them at once, and the others so small that it is affordable."""
    sizes = {"heads": 1, **REAL_SIZES[case.seed % len(REAL_SIZES)]}
    return case.but(batch=1, kv_heads=1, value_dim=sizes["head_dim"], **sizes)


def many_queries(case: Case) -> Case:
    """With more queries than a block of 64 holds, and the other axes so small that it is affordable."""
    small = at_most(batch=1, kv_len=33, head_dim=4, value_dim=4)(case)
    return one_of("q_len", 66, 96, 129, 130)(small)


def more_slots_than_sixteen_bits(case: Case) -> Case:
    """With a mask of more than 65,536 slots, and the other axes so small that it is affordable."""
    small = at_most(head_dim=4, value_dim=4)(case.but(batch=1, heads=1, kv_heads=1))
    return small.but(q_len=257, kv_len=264, mask_axes="bhqk")


def causal_across_blocks(case: Case) -> Case:
    """With is_causal over blocks of 64 that are filled exactly, or over lengths whose difference fills none."""
    q_len, kv_len = ((128, 128), (130, 163), (192, 192), (97, 206))[case.seed % 4]
    small = at_most(batch=1, head_dim=4, value_dim=4)(case.but(heads=case.kv_heads))
    return causal(small.but(q_len=q_len, kv_len=kv_len))


def causal_over_hundreds(case: Case) -> Case:
    """With is_causal over several hundred positions, and the other axes so small that it is affordable."""
    q_len, kv_len = ((300, 300), (520, 520), (260, 600), (385, 385))[case.seed % 4]
    small = at_most(batch=1, head_dim=4, value_dim=4)(case.but(heads=1, kv_heads=1))
    return causal(small.but(q_len=q_len, kv_len=kv_len))


def causal_beyond_whole_halves(case: Case) -> Case:
    """With is_causal over more positions than bfloat16 tells apart, which are the first 256."""
    length = 384 if case.seed % 2 else 600
    small = case.but(
        batch=1, heads=1, kv_heads=1, head_dim=min(case.head_dim, 4), value_dim=min(case.value_dim, 4)
    )
    return causal(small.but(q_len=length, kv_len=length, dtype="bfloat16"))


def equal_heads(case: Case) -> Case:
    """As many key heads as query heads."""
    return case.but(kv_heads=case.heads)


def equal_widths(case: Case) -> Case:
    """With values as wide as the keys."""
    return case.but(value_dim=case.head_dim)


def grouped(case: Case) -> Case:
    """With fewer key heads than query heads, and more than one, so that their order shows."""
    if case.kv_heads > 1 and case.heads > case.kv_heads:
        return case
    return case.but(kv_heads=2, heads=2 * max(2, case.heads // max(case.kv_heads, 1)))
