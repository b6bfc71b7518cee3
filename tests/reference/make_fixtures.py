#!/usr/bin/env python3
"""Writes tests/accuracy/fixtures: for each case of cases.py its model file and what it should give, in float64.

    python3 tests/reference/make_fixtures.py            (NumPy and safetensors; seconds)

For a case NAME:
  NAME.yaml         the model file
  NAME.safetensors  float64: `values`, the output at the flat `positions` (every element of a small output, else a
                    fixed pseudo-random choice), and `cell_sums` [B, H, W], each cell's sum over its channels
and in cases.json the shape, seed, mask, and the norm that errors are relative to. Checkpoints are written beside.
"""

import json
import math
import pathlib

import numpy as np
from safetensors.numpy import save_file

import axial
from cases import CASES, case_input, case_weights

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "accuracy" / "fixtures"
MOST_VALUES = 4096  # stored per case


def checkpoint_name(case):
    """Of the file that holds the weights, relative to FOLDER; "generated" when there is none."""
    kind = case.get("weights", "generated")
    return {"generated": kind, "split": case["name"] + ".weights.safetensors"}.get(kind, "../" + kind)


def chosen_positions(count):
    """All of [0, count), or MOST_VALUES different ones."""
    if count <= MOST_VALUES:
        return np.arange(count)
    with np.errstate(over="ignore"):
        order = axial.mix(np.arange(count, dtype=np.uint64))
    return np.sort(np.argsort(order, kind="stable")[:MOST_VALUES])


def main():
    FOLDER.mkdir(exist_ok=True)
    for old in FOLDER.iterdir():
        old.unlink()
    records = []
    for case in CASES:
        name = case["name"]
        weights = case_weights(case)
        x, mask = case_input(case)
        y = axial.forward(case["model"], weights, x, mask)
        assert np.isfinite(y).all(), name
        against = case.get("against", "update")
        base = y - x if against == "update" else y

        (FOLDER / f"{name}.yaml").write_text(axial.to_yaml(case["model"]))
        if "weights" in case:
            stored = axial.checkpoint(case["model"], weights, split_qkv=case["weights"] == "split")
            save_file(stored, FOLDER / checkpoint_name(case), metadata={"format": "pt"})
        positions = chosen_positions(y.size)
        save_file({"positions": positions.astype(np.float64), "values": y.reshape(-1)[positions].copy(),
                   "cell_sums": np.ascontiguousarray(y.sum(axis=-1))}, FOLDER / f"{name}.safetensors")
        records.append({
            "name": name, "shape": case["shape"], "seed": case["seed"], "weights": checkpoint_name(case),
            "input": {"mean": 0, "scale": 1} | case.get("input", {}),
            "mask": {"threshold": 0, "empty_rows": [], "empty_columns": []} | case["mask"] if "mask" in case else None,
            "output_shape": list(y.shape), "against": against, "limit": case.get("limit"),
            "narrow": case.get("narrow", True), "norm": math.sqrt(float(np.sum(base * base))),
        })
    lines = ",\n".join("  " + json.dumps(record) for record in records)
    (FOLDER / "cases.json").write_text('{"cases": [\n' + lines + "\n]}\n")
    sizes = [f.stat().st_size for f in FOLDER.iterdir()]
    print(f"{len(records)} cases, {sum(sizes) / 1e6:.2f} MB in {len(sizes)} files, the largest {max(sizes) / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
