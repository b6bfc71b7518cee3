"""Writes the seeds of the safetensors and npy fuzzers: corpus/safetensors and corpus/npy.

    python tests/fuzz/make_seeds.py BUILD/tests/formats/formats_dump

The files under 1 KiB that the tests refuse, and a few valid ones; of each also the form that the fuzzers mend: a
count of data bytes, then the header alone.
"""

import pathlib
import subprocess
import sys
import tempfile

CORPUS = pathlib.Path(__file__).parent / "corpus"
LIMIT = 1024
# One of a kind is enough where many differ in a word only.
KINDS = {
    ".safetensors": """truncated_in_header length_2_to_63 utf8_overlong header_is_garbage duplicate_name
        duplicate_metadata_key unknown_key tensor_array dtype_object dtype_unknown shape_nested shape_2_to_63
        shape_fraction count_wraps_to_0 half_a_byte offsets_wrap offsets_three overlap hole_between empty_inside_another
        trailing_byte metadata_nested lone_surrogate_escape""".split(),
    ".npy": """cut_in_header npz version_4 length_2_to_32 fortran_order big_endian structured descr_escape
        shape_negative shape_nested shape_2_to_63 product_overflows terabytes rank_65 duplicate_shape unknown_key
        string_never_ends text_after_dict""".split(),
}
NPY = {
    "valid_1": (1, "{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }\n", 12),
    "valid_2": (2, "{'descr': '|b1', 'fortran_order': False, 'shape': (), }\n", 1),
    "valid_3": (3, "{'shape': (2, 0, 4), 'fortran_order': False, 'descr': '<f8'}", 0),
}
SAFETENSORS = {
    "valid_types": (
        '{"a":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]},"b":{"dtype":"BF16","shape":[],"data_offsets":[8,10]},'
        '"c":{"dtype":"F4","shape":[2,3],"data_offsets":[10,13]},"d":{"dtype":"U8","shape":[0,7],"data_offsets":[0,0]}}',
        13,
    ),
    "valid_metadata": ('{"__metadata__":{"k":"\\u00e9"},"x":{"shape":[1],"dtype":"F64","data_offsets":[0,8]}}  ', 8),
}


def main():
    for suffix, kinds in KINDS.items():
        folder = CORPUS / suffix[1:]
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.iterdir():
            old.unlink()
        with tempfile.TemporaryDirectory() as temporary:
            subprocess.run([sys.argv[1], "write", temporary], check=True, capture_output=True)
            for kind in kinds:
                data = (pathlib.Path(temporary) / (kind + suffix)).read_bytes()
                assert len(data) < LIMIT, kind
                (folder / kind).write_bytes(data)
    for name, (version, header, count) in NPY.items():
        length = len(header).to_bytes(2 if version == 1 else 4, "little")
        whole = b"\x93NUMPY" + bytes([version, 0]) + length + header.encode() + bytes(count)
        (CORPUS / "npy" / name).write_bytes(whole)
        (CORPUS / "npy" / f"{name}_header").write_bytes(bytes([count]) + header.encode())
    for name, (header, count) in SAFETENSORS.items():
        whole = len(header).to_bytes(8, "little") + header.encode() + bytes(count)
        (CORPUS / "safetensors" / name).write_bytes(whole)
        (CORPUS / "safetensors" / f"{name}_header").write_bytes(count.to_bytes(2, "little") + header.encode())


if __name__ == "__main__":
    main()
