"""The configurations of the accuracy tests: models, shapes, seeds, masks.

A case is a dictionary: `model` (the structure of a model file), `shape` [B, H, W] of the input grid, `seed` of its
weights and input, and where they differ from the default
  input    {"mean": 0, "scale": 1} of the input's normal numbers
  mask     {"threshold", "empty_rows", "empty_columns"} as axial.random_mask takes
  weights  "generated" (from the seed, on both sides), or stored as a checkpoint: "split" with q, k and v apart,
           or the checkpoint's name in tests/accuracy
  against  "update": errors are relative to ||y64 - x||; "output": to ||y64||, where nothing is added to x
  limit    an error limit in fp32 other than 1e-6
  narrow   False where 16-bit precisions are not well-conditioned: only fp32 and fp64 are compared
"""

import axial


def attention(axis, heads, tensors=None, **options):
    return {"axial_attention": {"axis": axis, "heads": heads, **options, "tensors": tensors or axis + "_{name}"}}


def feed_forward(hidden, tensors="ff_{name}", **options):
    return {"feed_forward": {"hidden": hidden, **options, "tensors": tensors}}


def norm(tensors="{name}", **options):
    return {"norm": {**options, "tensors": tensors}}


def linear(out, tensors, **options):
    return {"linear": {"out": out, **options, "tensors": tensors}}


def both(heads, **options):
    """A row layer, then a column layer."""
    return [attention("row", heads, **options), attention("column", heads, **options)]


def case(name, dim, shape, layers, seed, **facts):
    model = {"name": name, "input": {"dim": dim}, "layers": layers}
    return {"name": name, "model": model, "shape": shape, "seed": seed, **facts}


def denoiser(count, heads, hidden, rope):
    return [
        {"patch_embed": {"patch": 4, "channels": 3, "dim": 48, "tensors": "embed.{name}"}},
        {"repeat": {"count": count, "index": "i", "layers": [
            attention("row", heads, "blocks.{i}.row.{name}", rope=rope),
            attention("column", heads, "blocks.{i}.column.{name}", rope=rope),
            feed_forward(hidden, "blocks.{i}.ff.{name}")]}},
        norm("final_{name}"),
        {"patch_unembed": {"patch": 4, "channels": 3, "tensors": "unembed.{name}"}},
    ]


def nested_repeat():
    inner = {"repeat": {"count": 2, "index": "j", "layers": [attention("row", 2, "g{i}.r{j}.{name}")]}}
    return [{"repeat": {"count": 2, "layers": [inner, attention("column", 2, "g{i}.c.{name}"),
                                               feed_forward(32, "g{i}.f.{name}")]}}]


HALF = {"theta": 10000, "style": "half"}
INTERLEAVED = {"theta": 10000, "style": "interleaved"}
SPLIT_MAP = {
    "norm.weight": "ln.gamma", "norm.bias": "ln.beta", "q.weight": "query.kernel", "q.bias": "query.offset",
    "k.weight": "key.kernel", "k.bias": "key.offset", "v.weight": "value.kernel", "v.bias": "value.offset",
    "out.weight": "merge.kernel", "out.bias": "merge.offset",
}

CASES = [
    # The seed block, and one layer of each axis.
    case("seed_block", 64, [4, 32, 32], both(4), 1),
    case("seed_block_checkpoint", 64, [4, 32, 32],
         [attention("row", 4, "row_{name}"), attention("column", 4, "col_{name}")], 2, weights="seed_block.safetensors"),
    case("row_only", 16, [2, 5, 7], [attention("row", 2)], 3),
    case("column_only", 16, [2, 7, 5], [attention("column", 2)], 4),
    # Sizes: primes, ones, long, wide.
    case("prime_sizes", 24, [3, 13, 17], both(3), 5),
    case("rows_of_one", 32, [2, 9, 1], both(2), 6),
    case("columns_of_one", 32, [2, 1, 11], both(2), 7),
    case("one_cell", 8, [1, 1, 1], both(1), 8),
    case("one_channel", 1, [2, 3, 4], both(1), 9, narrow=False),  # its LayerNorm gives the bias alone
    case("long_rows", 32, [1, 2, 601], [attention("row", 2)], 10),
    case("long_columns", 32, [1, 515, 3], [attention("column", 4)], 11),
    case("wide_768", 768, [1, 3, 5], both(12), 12),
    case("wide_1024", 1024, [1, 4, 3], both(16), 13),
    case("wide_1000", 1000, [1, 2, 3], both(8), 14),
    # Heads.
    case("head_dim_5", 20, [2, 6, 9], both(4), 15),
    case("head_dim_8", 64, [2, 10, 12], both(8), 16),
    case("head_dim_24", 48, [2, 11, 6], both(2), 17),
    case("head_dim_128", 128, [1, 12, 10], both(1), 18),
    case("inner_wider", 24, [2, 7, 8], both(3, head_dim=16), 19),
    case("inner_narrower", 40, [2, 8, 7], both(2, head_dim=8), 20),
    # Options of attention.
    case("no_residual", 32, [2, 6, 7], both(4, residual=False), 21, against="output"),
    case("no_norm", 32, [2, 6, 7], both(4, norm="none"), 22),
    case("rms_norm", 32, [2, 6, 7], both(4, norm="rms"), 23),
    case("eps_large", 32, [2, 6, 7], both(4, eps=0.5), 24),
    case("qkv_bias", 32, [2, 6, 7], both(4, qkv_bias=True), 25),
    case("no_out_bias", 32, [2, 6, 7], both(4, out_bias=False), 26),
    case("scale_given", 32, [2, 6, 7], both(4, scale=0.71), 27),
    case("scale_negative", 32, [2, 6, 7], both(4, scale=-0.5), 28),
    case("causal", 32, [2, 17, 19], both(4, causal=True), 29),
    case("masked", 32, [2, 14, 15], both(4), 30, mask={"threshold": -0.5}),
    case("masked_causal", 32, [2, 14, 15], both(4, causal=True), 31, mask={"threshold": 0.2}),
    case("masked_sequences", 32, [2, 9, 8], both(4), 32,
         mask={"threshold": -0.8, "empty_rows": [0, 4, 8], "empty_columns": [3]}),
    case("masked_all", 32, [2, 5, 6], both(4), 33, mask={"threshold": 1e9}),
    case("masked_long", 32, [1, 2, 300], [attention("row", 2)], 34, mask={"threshold": 1.5}),
    case("rope_half", 32, [2, 12, 13], both(2, rope=HALF), 35),
    case("rope_interleaved", 32, [2, 12, 13], both(2, rope=INTERLEAVED), 36),
    case("rope_half_partial", 48, [2, 12, 13], both(2, rope={"theta": 100, "style": "half", "dims": 10}), 37),
    case("rope_interleaved_partial", 48, [2, 12, 13],
         both(2, rope={"theta": 500.5, "style": "interleaved", "dims": 6}), 38),
    case("rope_long", 16, [1, 1, 512], [attention("row", 1, rope=HALF)], 39),
    case("everything", 40, [2, 9, 11],
         both(2, head_dim=12, norm="rms", eps=1e-3, qkv_bias=True, scale=0.4, causal=True,
              rope={"theta": 1000, "style": "interleaved", "dims": 8}), 40, mask={"threshold": -0.3}),
    # Numbers. With scores of +-1e4, softmax picks one key; the seed is one where no two keys come close.
    case("scores_1e4", 32, [1, 3, 6], [attention("row", 2, norm="none", scale=2500.0)], 41, narrow=False),
    case("layer_norm_mean_1e4", 96, [2, 4, 5], [norm()], 42, input={"mean": 1e4, "scale": 1}, against="output",
         limit=1e-5, narrow=False),
    case("attention_mean_1e4", 64, [1, 5, 6], [attention("row", 4, residual=False)], 43,
         input={"mean": 1e4, "scale": 1}, against="output", limit=1e-5, narrow=False),
    case("feed_forward_mean_1e4", 64, [1, 5, 6], [feed_forward(96, residual=False)], 44,
         input={"mean": 1e4, "scale": 1}, against="output", limit=1e-5, narrow=False),
    # The other layers.
    case("gelu", 24, [2, 5, 6], [feed_forward(96)], 45),
    case("gelu_tanh", 24, [2, 5, 6], [feed_forward(50, activation="gelu_tanh", norm="rms")], 46),
    case("relu", 24, [2, 5, 6], [feed_forward(33, activation="relu", norm="none", bias=False)], 47),
    case("silu", 24, [2, 5, 6], [feed_forward(7, activation="silu", residual=False)], 48, against="output"),
    case("feed_forward_wide", 512, [1, 3, 3], [feed_forward(2048)], 49),
    case("norms", 27, [2, 5, 6], [norm("a_{name}", eps=0.01), norm("b_{name}", kind="rms")], 50, against="output"),
    case("linears", 24, [2, 5, 6], [linear(40, "a_{name}", bias=False), linear(7, "b_{name}")], 51,
         against="output"),
    case("positions", 16, [2, 5, 6],
         [{"position_embedding": {"rows": 9, "columns": 6, "tensors": "table_{name}"}}, *both(2)], 52),
    case("patches", 3, [2, 10, 15],
         [{"patch_embed": {"patch": 5, "channels": 3, "dim": 20, "bias": False, "tensors": "embed_{name}"}},
          {"patch_unembed": {"patch": 2, "channels": 4, "tensors": "unembed_{name}"}}], 53, against="output"),
    # Whole models.
    case("denoiser", 3, [1, 36, 52], denoiser(2, 3, 96, HALF), 54, against="output"),
    case("nested_repeat", 16, [1, 6, 5], nested_repeat(), 55),
    case("split_template", 12, [1, 4, 5], [attention("row", 2, "layer.{name}", qkv_bias=True)], 56,
         weights="split"),
    case("split_map", 12, [1, 4, 5], [attention("column", 2, SPLIT_MAP, qkv_bias=True)], 57, weights="split"),
]


def case_weights(case):
    """By flat index and canonical name, as axial.forward takes them."""
    return axial.random_weights(case["model"], case["seed"])


def case_input(case):
    """The float32 input grid, and the mask or None."""
    x = axial.random_input([*case["shape"], case["model"]["input"]["dim"]], case["seed"], **case.get("input", {}))
    mask = case.get("mask")
    return x, None if mask is None else axial.random_mask(case["shape"], case["seed"], **mask)
