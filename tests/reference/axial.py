"""Every Warpweave layer in plain NumPy float64, written from docs/models.md alone.

This is the truth that the engine is tested against. It shares no code with the engine and is written to be read:
no blocking, no fusing, every intermediate in full. A model is a dictionary of the same structure as the YAML
model file, see `expand`; weights are a dictionary "<flat node index>.<canonical name>" -> float32 array.
"""

import math

import numpy as np

# ---------------------------------------------------------------------------------------------------------------
# The generator of weights and inputs: integers and one double multiplication, the same bits on every machine.
# weights/random.cpp is its twin.

MASK64 = (1 << 64) - 1


def fnv1a(text):
    """64-bit FNV-1a hash of the bytes of `text` (Fowler, Noll, Vo)."""
    h = 0xCBF29CE484222325
    for byte in text.encode():
        h = ((h ^ byte) * 0x100000001B3) & MASK64
    return h


def mix(z):
    """The finaliser of splitmix64 (Steele, Lea, Flood 2014), on an array of uint64."""
    z = np.asarray(z, dtype=np.uint64)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def normals(seed, key, count):
    """`count` doubles of mean 0 and variance 1: sums of four uniform 16-bit numbers (Irwin-Hall), scaled."""
    with np.errstate(over="ignore"):
        state = mix(np.array([(seed & MASK64) ^ fnv1a(key)], dtype=np.uint64))
        k = np.arange(1, count + 1, dtype=np.uint64)
        u = mix(state + k * np.uint64(0x9E3779B97F4A7C15))
    total = np.zeros(count, dtype=np.int64)
    for shift in (0, 16, 32, 48):
        total += ((u >> np.uint64(shift)) & np.uint64(0xFFFF)).astype(np.int64)
    return (total - 131070) * (math.sqrt(3.0) / 65536)


def random_tensor(seed, key, shape):
    """Weights by the shape and the name: N(0, 1/fan_in), norm weights 1 + 0.1 N, biases and tables 0.1 N."""
    n = normals(seed, key, math.prod(shape))
    name = key.split(".", 1)[1]
    if name == "norm.weight":
        n = 1 + 0.1 * n
    elif len(shape) == 1 or name in ("rows", "columns"):
        n = 0.1 * n
    else:
        n = n / math.sqrt(shape[1])
    return n.astype(np.float32).reshape(shape)


def random_input(shape, seed, mean=0.0, scale=1.0):
    n = normals(seed, "input", math.prod(shape)).astype(np.float32)
    return (mean + scale * n.astype(np.float64)).astype(np.float32).reshape(shape)


def random_mask(shape, seed, threshold, empty_rows=(), empty_columns=()):
    """[B, H, W] bool, True = valid: where the normal is above `threshold`, and none in the rows and columns named."""
    n = normals(seed, "mask", math.prod(shape)).astype(np.float32)
    valid = (n > np.float32(threshold)).reshape(shape)
    valid[:, list(empty_rows), :] = False
    valid[:, :, list(empty_columns)] = False
    return valid


# ---------------------------------------------------------------------------------------------------------------
# Models.

DEFAULTS = {
    "axial_attention": dict(head_dim=None, norm="layer", eps=1e-5, qkv_bias=False, out_bias=True, residual=True,
                            scale=None, causal=False, rope=None, tensors="{name}"),
    "feed_forward": dict(activation="gelu", norm="layer", eps=1e-5, bias=True, residual=True, tensors="{name}"),
    "norm": dict(kind="layer", eps=1e-5, tensors="{name}"),
    "linear": dict(bias=True, tensors="{name}"),
    "patch_embed": dict(bias=True, tensors="{name}"),
    "patch_unembed": dict(bias=True, tensors="{name}"),
    "position_embedding": dict(tensors="{name}"),
}


def expand(model):
    """The model's layers with repeats unrolled: a list of (type, parameters); parameters are complete, with `dim`
    (channels that come in) added and repeat indices filled into the tensor names."""
    nodes = []

    def walk(layers, indices):
        for layer in layers:
            ((kind, given),) = layer.items()
            if kind == "repeat":
                for i in range(given["count"]):
                    walk(given["layers"], indices | {given.get("index", "i"): i})
                continue
            p = DEFAULTS[kind] | given
            names = p["tensors"]
            for index, value in indices.items():
                fill = lambda s: s.replace("{%s}" % index, str(value))
                names = fill(names) if isinstance(names, str) else {k: fill(v) for k, v in names.items()}
            p["tensors"] = names
            nodes.append((kind, p))

    walk(model["layers"], {})
    dim = model["input"]["dim"]
    for kind, p in nodes:
        if kind == "patch_embed":
            p["embed"], p["dim"] = p["dim"], dim
            dim = p["embed"]
            continue
        p["dim"] = dim
        if kind == "axial_attention":
            p["head_dim"] = p["head_dim"] or dim // p["heads"]
            p["inner"] = p["heads"] * p["head_dim"]
            if p["scale"] is None:
                p["scale"] = p["head_dim"] ** -0.5
        elif kind == "linear":
            dim = p["out"]
        elif kind == "patch_unembed":
            dim = p["channels"]
    return nodes


def tensor_shapes(kind, p):
    """Canonical name -> shape of one layer's tensors."""
    dim = p["dim"]

    def norm(which):
        return {"layer": {"norm.weight": (dim,), "norm.bias": (dim,)}, "rms": {"norm.weight": (dim,)}, "none": {}}[which]

    def linear(prefix, out, inputs, bias):
        shapes = {prefix + "weight": (out, inputs)}
        if bias:
            shapes[prefix + "bias"] = (out,)
        return shapes

    if kind == "axial_attention":
        return (norm(p["norm"]) | linear("qkv.", 3 * p["inner"], dim, p["qkv_bias"])
                | linear("out.", dim, p["inner"], p["out_bias"]))
    if kind == "feed_forward":
        return (norm(p["norm"]) | linear("up.", p["hidden"], dim, p["bias"])
                | linear("down.", dim, p["hidden"], p["bias"]))
    if kind == "norm":
        return norm(p["kind"])
    if kind == "linear":
        return linear("", p["out"], dim, p["bias"])
    if kind == "patch_embed":
        return linear("", p["embed"], p["patch"] ** 2 * p["channels"], p["bias"])
    if kind == "patch_unembed":
        return linear("", p["patch"] ** 2 * p["channels"], dim, p["bias"])
    if kind == "position_embedding":
        return {"rows": (p["rows"], dim), "columns": (p["columns"], dim)}
    raise ValueError(kind)


def random_weights(model, seed):
    weights = {}
    for index, (kind, p) in enumerate(expand(model)):
        for name, shape in tensor_shapes(kind, p).items():
            key = f"{index}.{name}"
            weights[key] = random_tensor(seed, key, shape)
    return weights


def checkpoint(model, weights, split_qkv=False):
    """The weights under the names that the model file gives them; `split_qkv` stores q, k and v apart."""
    tensors = {}
    for index, (kind, p) in enumerate(expand(model)):
        for name in tensor_shapes(kind, p):
            value = weights[f"{index}.{name}"]
            parts = {name: value}
            if split_qkv and name.startswith("qkv."):
                parts = dict(zip((part + name[3:] for part in "qkv"), np.split(value, 3)))
            for canonical, part in parts.items():
                names = p["tensors"]
                actual = names.replace("{name}", canonical) if isinstance(names, str) else names[canonical]
                tensors[actual] = np.ascontiguousarray(part)
    return tensors


# ---------------------------------------------------------------------------------------------------------------
# Layers. x is [B, H, W, D] float64; w maps canonical names to float64 arrays; mask is [B, H, W] bool or None.


def normalise(x, w, kind, eps):
    if kind == "none":
        return x
    if kind == "rms":
        return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * w["norm.weight"]
    centred = x - np.mean(x, axis=-1, keepdims=True)
    variance = np.mean(centred * centred, axis=-1, keepdims=True)
    return centred / np.sqrt(variance + eps) * w["norm.weight"] + w["norm.bias"]


def affine(x, w, prefix):
    y = x @ w[prefix + "weight"].T
    return y + w[prefix + "bias"] if prefix + "bias" in w else y


def rotate(t, rope):
    """RoPE (Su et al. 2021) on [..., L, head_dim]; position is the index along L."""
    length, head_dim = t.shape[-2:]
    dims = rope.get("dims") or head_dim
    theta = rope.get("theta", 10000)
    angle = np.arange(length)[:, None] * float(theta) ** (-2.0 * np.arange(dims // 2) / dims)[None, :]
    cos, sin = np.cos(angle), np.sin(angle)
    if rope.get("style", "half") == "half":
        first, second = np.arange(dims // 2), np.arange(dims // 2) + dims // 2
    else:
        first, second = np.arange(0, dims, 2), np.arange(1, dims, 2)
    out = t.copy()
    out[..., first] = t[..., first] * cos - t[..., second] * sin
    out[..., second] = t[..., first] * sin + t[..., second] * cos
    return out


def attend_rows(x, w, p, mask):
    """Attention within every row of one sample: x [R, L, D], mask [R, L]."""
    rows, length, _ = x.shape
    heads, head_dim = p["heads"], p["head_dim"]
    qkv = affine(normalise(x, w, p["norm"], p["eps"]), w, "qkv.")
    # [R, L, 3 * inner] -> three of [R, heads, L, head_dim]
    q, k, v = (t.reshape(rows, length, heads, head_dim).swapaxes(1, 2) for t in np.split(qkv, 3, axis=-1))
    if p["rope"]:
        q, k = rotate(q, p["rope"]), rotate(k, p["rope"])
    allowed = np.ones((rows, 1, length, length), dtype=bool)  # [R, -, query, key]
    if mask is not None:
        allowed &= mask[:, None, None, :]
        v = np.where(mask[:, None, :, None], v, 0.0)
    if p["causal"]:
        allowed &= np.tril(np.ones((length, length), dtype=bool))
    scores = np.where(allowed, p["scale"] * (q @ k.swapaxes(-1, -2)), -np.inf)
    top = np.max(scores, axis=-1, keepdims=True)
    some = top > -np.inf  # queries with a valid key; the others attend to nothing
    e = np.where(allowed, np.exp(scores - np.where(some, top, 0.0)), 0.0)
    probabilities = e / np.where(some, e.sum(axis=-1, keepdims=True), 1.0)
    o = (probabilities @ v).swapaxes(1, 2).reshape(rows, length, heads * head_dim)
    y = affine(o, w, "out.")
    return x + y if p["residual"] else y


def attention(x, w, p, mask):
    if p["axis"] == "column":
        turned = attention(x.swapaxes(1, 2), w, p | {"axis": "row"}, None if mask is None else mask.swapaxes(1, 2))
        return turned.swapaxes(1, 2)
    return np.stack([attend_rows(x[b], w, p, None if mask is None else mask[b]) for b in range(len(x))])


erf = np.vectorize(math.erf, otypes=[np.float64])


def activate(x, kind):
    if kind == "gelu":
        return x * 0.5 * (1 + erf(x / math.sqrt(2)))
    if kind == "gelu_tanh":
        return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    if kind == "relu":
        return np.maximum(x, 0)
    if kind == "silu":
        return x / (1 + np.exp(-x))
    raise ValueError(kind)


def feed_forward(x, w, p):
    y = affine(activate(affine(normalise(x, w, p["norm"], p["eps"]), w, "up."), p["activation"]), w, "down.")
    return x + y if p["residual"] else y


def patch_embed(x, w, p):
    batch, height, width, channels = x.shape
    n = p["patch"]
    patches = x.reshape(batch, height // n, n, width // n, n, channels).transpose(0, 1, 3, 2, 4, 5)
    return affine(patches.reshape(batch, height // n, width // n, n * n * channels), w, "")


def patch_unembed(x, w, p):
    batch, rows, columns, _ = x.shape
    n, channels = p["patch"], p["channels"]
    pixels = affine(x, w, "").reshape(batch, rows, columns, n, n, channels).transpose(0, 1, 3, 2, 4, 5)
    return pixels.reshape(batch, rows * n, columns * n, channels)


def position_embedding(x, w):
    return x + w["rows"][: x.shape[1], None, :] + w["columns"][None, : x.shape[2], :]


def forward(model, weights, x, mask=None):
    """The float64 result of the model. The mask is of the input grid and holds for every attention layer."""
    x = np.asarray(x, dtype=np.float64)
    for index, (kind, p) in enumerate(expand(model)):
        w = {name: weights[f"{index}.{name}"].astype(np.float64) for name in tensor_shapes(kind, p)}
        if kind == "axial_attention":
            x = attention(x, w, p, mask)
        elif kind == "feed_forward":
            x = feed_forward(x, w, p)
        elif kind == "norm":
            x = normalise(x, w, p["kind"], p["eps"])
        elif kind == "linear":
            x = affine(x, w, "")
        elif kind == "patch_embed":
            x = patch_embed(x, w, p)
        elif kind == "patch_unembed":
            x = patch_unembed(x, w, p)
        elif kind == "position_embedding":
            x = position_embedding(x, w)
    return x


# ---------------------------------------------------------------------------------------------------------------
# Model files.


def flow(value):
    """A value in YAML flow style."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k}: {flow(v)}" for k, v in value.items()) + "}"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str) and "{" in value:
        return f'"{value}"'
    return str(value)


def to_yaml(model):
    lines = [f"name: {model['name']}", f"input: {flow(model['input'])}", "layers:"]

    def walk(layers, indent):
        for layer in layers:
            ((kind, p),) = layer.items()
            if kind != "repeat":
                lines.append(f"{indent}- {kind}: {flow(p)}")
                continue
            lines.append(f"{indent}- repeat:")
            for key, value in p.items():
                if key != "layers":
                    lines.append(f"{indent}    {key}: {flow(value)}")
            lines.append(f"{indent}    layers:")
            walk(p["layers"], indent + "      ")

    walk(model["layers"], "  ")
    return "\n".join(lines) + "\n"
