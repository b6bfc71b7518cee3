"""Compares this project's safetensors and .npy files with the official Python packages; run by hand.

    python tests/formats/safetensors_verdicts.py BUILD/tests/formats/formats_dump

needs numpy and safetensors. It does three things:

* Every malformed file of the C++ tests (formats_dump write) is given to the official reader. Its verdicts are
  saved in fixtures/official_verdicts.json, which the C++ tests assert.
* Several hundred random valid files, of all dtypes, with empty tensors, scalars, metadata, odd names, unsorted keys
  and headers of any alignment, half of them written by the package and half by hand, must be read by both bit for
  bit. One of them is saved as fixtures/official.safetensors with its content in fixtures/official.json.

Exits with status 1 where our reader accepts a malformed file or reads a valid one otherwise. (Where only the
official reader accepts a malformed file, the C++ list must give the reason; its test checks that.)
"""

import ctypes
import json
import pathlib
import random
import subprocess
import sys
import tempfile

import numpy as np
import safetensors

HERE = pathlib.Path(__file__).parent
BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "U16": 16, "I16": 16, "F16": 16, "BF16": 16, "U32": 32, "I32": 32, "F32": 32,
    "U64": 64, "I64": 64, "F64": 64, "C64": 64, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8, "F6_E2M3": 6, "F6_E3M2": 6, "F4": 4,
}
ENGINE_DTYPES = {"F64", "F32", "F16", "BF16", "U8", "BOOL"}
# What the package calls them when it writes.
WRITER_NAMES = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "U16": "uint16", "I16": "int16", "F16": "float16",
    "BF16": "bfloat16", "U32": "uint32", "I32": "int32", "F32": "float32", "U64": "uint64", "I64": "int64",
    "F64": "float64", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "C64": "complex64",
}


def official(data: bytes):
    """(tensors as {name: [dtype, shape, hex]}, None) or (None, error)."""
    try:
        tensors = safetensors.deserialize(data)
    except safetensors.SafetensorError as error:
        return None, str(error)
    return {n: [t["dtype"], list(t["shape"]), bytes(t["data"]).hex()] for n, t in tensors}, None


def serialize(tensors, metadata):
    buffers = {n: ctypes.create_string_buffer(b, max(len(b), 1)) for n, (_, _, b) in tensors.items()}
    specs = {
        n: safetensors.TensorSpec(dtype=WRITER_NAMES[d], shape=s, data_ptr=ctypes.addressof(buffers[n]), data_len=len(b))
        for n, (d, s, b) in tensors.items()
    }
    return bytes(safetensors.serialize(specs, metadata=metadata or None))


def run(dump, *arguments):
    return subprocess.run([dump, *arguments], check=True, capture_output=True, text=True).stdout.splitlines()


def compare_malformed(dump, folder):
    suffix = ".safetensors"
    kinds = [k.removesuffix(suffix) for k in run(dump, "write", str(folder)) if k.endswith(suffix)]
    ours = [json.loads(line) for line in run(dump, "read", *(f"{folder}/{k}.safetensors" for k in kinds))]
    verdicts = {}
    for kind, mine in zip(kinds, ours):
        _, error = official((folder / f"{kind}.safetensors").read_bytes())
        # Which of two tensors it names may change from run to run.
        verdicts[kind] = error.split(" for tensor")[0][:100] if error else "accepts"
        if "error" not in mine:
            print(f"{kind}: our reader accepts it")
    return verdicts, sum("error" not in m for m in ours)


def random_shape(rng, bits):
    while True:
        shape = [rng.choice([0, 1, 1, 2, 3, 4, 5, 7]) for _ in range(rng.randrange(5))]
        count = 1
        for size in shape:
            count *= size
        if count * bits % 8 == 0:
            return shape, count * bits // 8


def random_name(rng):
    pieces = ["layers.", "0", "weight", "bias", "é", "重み", "a b", "\"", "\\", "\n", "😀", "__metadata", "x", "/"]
    return "".join(rng.choice(pieces) for _ in range(rng.randrange(6)))


def random_tensors(rng, dtypes):
    tensors = {}
    for _ in range(rng.randrange(7)):
        dtype = rng.choice(dtypes)
        shape, size = random_shape(rng, BITS[dtype])
        tensors[random_name(rng)] = (dtype, shape, rng.randbytes(size))
    return tensors


def random_metadata(rng):
    return {random_name(rng): random_name(rng) for _ in range(rng.randrange(4))}


def written_by_package(rng):
    tensors = random_tensors(rng, list(WRITER_NAMES))
    metadata = random_metadata(rng)
    return serialize(tensors, metadata), tensors, metadata


def written_by_hand(rng):
    """Keys, fields and data each in an order of their own; white space and escapes; any header alignment."""
    tensors = random_tensors(rng, list(BITS))
    metadata = random_metadata(rng)
    order = list(tensors)
    rng.shuffle(order)
    entries, data = [], b""
    for name in order:
        dtype, shape, content = tensors[name]
        fields = [("dtype", dtype), ("shape", shape), ("data_offsets", [len(data), len(data) + len(content)])]
        rng.shuffle(fields)
        entries.append((name, dict(fields)))
        data += content
    if metadata or rng.random() < 0.3:
        entries.append(("__metadata__", metadata))
    rng.shuffle(entries)
    header = json.dumps(dict(entries), ensure_ascii=rng.random() < 0.5, indent=rng.choice([None, None, 1]))
    header = header.encode() + b" " * rng.randrange(9)
    return len(header).to_bytes(8, "little") + header + data, tensors, metadata


def compare_valid(dump, folder, count):
    rng = random.Random(0)
    wanted, seen = [], set()
    for i in range(count):
        data, tensors, metadata = (written_by_package if i % 2 else written_by_hand)(rng)
        (folder / f"valid{i}.safetensors").write_bytes(data)
        expected = {n: [d, s, b.hex()] for n, (d, s, b) in tensors.items()}
        seen |= {d for d, _, _ in tensors.values()}
        theirs, error = official(data)
        assert theirs == expected, f"the official reader on valid file {i}: {error}"
        wanted.append({"metadata": metadata, "tensors": expected})
    assert seen == set(BITS), set(BITS) - seen
    ours = [json.loads(line) for line in run(dump, "read", *(f"{folder}/valid{i}.safetensors" for i in range(count)))]
    bad = 0
    for i, (mine, want) in enumerate(zip(ours, wanted)):
        if mine != want:
            print(f"valid file {i}: {mine.get('error', 'other content')}")
            bad += 1
            continue
        run(dump, "copy", f"{folder}/valid{i}.safetensors", f"{folder}/copy.safetensors")
        theirs, error = official((folder / "copy.safetensors").read_bytes())
        if theirs != {n: t for n, t in want["tensors"].items() if t[0] in ENGINE_DTYPES}:
            print(f"valid file {i}, written by us: {error or 'other content'}")
            bad += 1
    return bad


def compare_npy(dump, folder):
    rng = np.random.default_rng(0)
    count = bad = 0
    for dtype in ("<f2", "<f4", "<f8", "|u1", "|b1"):
        for shape in ((), (1,), (3,), (0,), (2, 3), (4, 0, 2), (1, 2, 3, 4), (1,) * 31):
            for version in ((1, 0), (2, 0), (3, 0)):
                bits = rng.integers(0, 2, (*shape, 8 * np.dtype(dtype).itemsize), dtype=np.uint8)
                x = np.packbits(bits, axis=-1).view(dtype).reshape(shape)
                x = (bits[..., 0] != 0).reshape(shape) if dtype == "|b1" else x
                with open(folder / "x.npy", "wb") as file:
                    np.lib.format.write_array(file, x, version=version)
                run(dump, "copy", f"{folder}/x.npy", f"{folder}/y.npy")
                y = np.load(folder / "y.npy")
                count += 1
                if y.dtype != x.dtype or y.shape != x.shape or y.tobytes() != x.tobytes():
                    print(f"{dtype} {shape} {version}: does not come back unchanged")
                    bad += 1
    return count, bad


def save_official_file():
    """Every dtype that the package writes, an empty tensor, a scalar, and metadata."""
    rng = random.Random(1)
    tensors = {}
    for dtype in WRITER_NAMES:
        tensors[f"{dtype}.matrix"] = (dtype, [2, 3], rng.randbytes(6 * BITS[dtype] // 8))
    tensors["scalar"] = ("F32", [], rng.randbytes(4))
    tensors["empty"] = ("F16", [3, 0], b"")
    metadata = {"format": "np"}
    fixtures = HERE / "fixtures"
    (fixtures / "official.safetensors").write_bytes(serialize(tensors, metadata))
    content = {"metadata": metadata, "tensors": {n: [d, s, b.hex()] for n, (d, s, b) in tensors.items()}}
    (fixtures / "official.json").write_text(json.dumps(content, indent=0, sort_keys=True) + "\n")


def main():
    dump = sys.argv[1]
    (HERE / "fixtures").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        verdicts, accepted = compare_malformed(dump, folder)
        count = 600
        bad = compare_valid(dump, folder, count)
        arrays, bad_arrays = compare_npy(dump, folder)
    document = {"package": f"safetensors {safetensors.__version__}", "verdicts": verdicts}
    (HERE / "fixtures" / "official_verdicts.json").write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")
    save_official_file()
    tolerated = [k for k, v in verdicts.items() if v == "accepts"]
    print(f"{len(verdicts)} malformed files: we refuse {len(verdicts) - accepted}, the package refuses "
          f"{len(verdicts) - len(tolerated)}; it accepts {', '.join(tolerated)}")
    print(f"{count} valid files: {count - bad} equal bit for bit, read and written again")
    print(f"{arrays} arrays of numpy.save: {arrays - bad_arrays} unchanged, read and written again")
    return 1 if accepted or bad or bad_arrays else 0


if __name__ == "__main__":
    sys.exit(main())
