"""The ONNX operator Attention: onnx's reference evaluator and onnxruntime's CPU provider, by models of one node."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

from headcheck.arithmetic import named
from headcheck.declarations import FOUR_AXES, Attention
from headcheck.subjects import builtin

KINDS = {"float32": 1, "float16": 10, "float64": 11, "bool": 9}
"""dtype -> TensorProto.DataType."""
Run = Callable[[Any, dict[str, Any]], Any]


@builtin(
    "onnx-reference",
    "onnx's reference evaluator of the operator Attention, opset 24.",
    needs=("onnx",),
    install="pip install onnx",
)
def onnx_reference() -> Attention:
    """The specification in NumPy."""
    from onnx.reference import ReferenceEvaluator

    evaluator = cache(lambda key: ReferenceEvaluator(_model(*key)))

    def run(key: Any, arrays: dict[str, Any]) -> Any:
        return evaluator(key).run(None, arrays)[0]

    wide = replace(named("native"), inputs="float32")  # The scale is an attribute, in float32.
    return _declared("onnx-reference", run).but(
        dtypes=("float32", "float64", "float16"), arithmetic={"float64": wide}
    )


@builtin(
    "onnxruntime-attention",
    "onnxruntime's operator Attention, opset 24, on the CPU.",
    needs=("onnx", "onnxruntime"),
    install="pip install onnx onnxruntime",
)
def onnxruntime_attention() -> Attention:
    """Its own kernel. It refuses a mask of one row for all queries, which the operator allows (docs/deviations.md)."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4

    @cache
    def session(key: Any) -> Any:
        model = _model(*key).SerializeToString()
        return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])

    def run(key: Any, arrays: dict[str, Any]) -> Any:
        return session(key).run(None, arrays)[0]

    return _declared("onnxruntime-attention", run, every_row=True).but(dtypes=("float32", "float16"))


def _model(kind: str, mask: str, attributes: tuple[tuple[str, Any], ...]) -> Any:
    """A model of one node; the sizes of its inputs are open."""
    from onnx import helper

    names = ["Q", "K", "V", *(["M"] if mask else [])]
    kinds = dict.fromkeys(names, KINDS[kind]) | ({"M": KINDS[mask]} if mask else {})
    axes = {name: [f"{name}{axis}" for axis in range(4)] for name in [*names, "Y"]}
    inputs = [helper.make_tensor_value_info(name, kinds[name], axes[name]) for name in names]
    output = helper.make_tensor_value_info("Y", KINDS[kind], axes["Y"])
    node = helper.make_node("Attention", names, ["Y"], **dict(attributes))
    graph = helper.make_graph([node], "attention", inputs, [output])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)], ir_version=11)


def _declared(name: str, run: Run, *, every_row: bool = False) -> Attention:
    """every_row: a mask of one row for all queries is given in full."""
    from torch import Tensor

    from headcheck.subjects._arrays import array, tensor

    def attention(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
        scale: float | None = None,
        softcap: float | None = None,
    ) -> Tensor:
        if scale is not None and scale <= 0:
            raise NotImplementedError("query and key are each given the root of the scale")
        given = {"is_causal": int(is_causal), "scale": scale, "softcap": softcap}
        attributes = tuple((word, value) for word, value in given.items() if value is not None)
        arrays = {"Q": array(query), "K": array(key), "V": array(value)}
        kinds = [str(x.dtype).removeprefix("torch.") for x in (query, attn_mask) if x is not None]
        if attn_mask is not None:
            # A mask that is shorter than the keys is none for those beyond: it is given in full.
            rows = query.shape[2] if every_row else attn_mask.shape[2]
            arrays["M"] = array(attn_mask.expand(*attn_mask.shape[:2], rows, key.shape[2]))
        return tensor(run((kinds[0], kinds[1] if kinds[1:] else "", attributes), arrays), query.dtype)

    return Attention(
        attention,
        name=name,
        masks=("boolean", "additive"),
        mask_shapes=FOUR_AXES,
        causal="top-left",
        mask_with_causal="and",
        grouped_heads="interleaved",
        softcap=True,
        dropout=False,
        gradients=False,
        may_refuse=True,
    )
