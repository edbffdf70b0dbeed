"""Reads a safetensors file by the published format alone, and says what is in it.

    read_safetensors.py FILE

Prints JSON: {"metadata": {...}, "tensors": {name: {"shape": [...], "sum": s, "first": x, "last": y}},
"also": [...]}, where "also" names the loaders (safetensors, torch) that are installed and agree.
"""

import json
import struct
import sys


def parse(path):
    with open(path, "rb") as file:
        data = file.read()
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8:8 + length].decode("utf-8"))
    values = data[8 + length:]
    metadata = header.pop("__metadata__", {})
    tensors = {}
    end = 0
    for name, about in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        begin, stop = about["data_offsets"]
        size, kind = {"F32": (4, "f"), "I64": (8, "q")}[about["dtype"]]
        assert begin == end, (name, about)
        elements = 1
        for dimension in about["shape"]:
            elements *= dimension
        assert stop - begin == size * elements, (name, about)
        tensors[name] = (about["shape"], struct.unpack_from(f"<{elements}{kind}", values, begin))
        end = stop
    assert end == len(values)
    return metadata, tensors


def loaders(path, tensors):
    """Names of the installed loaders, each of which must see the same."""
    agree = []
    try:
        import safetensors.numpy
    except ImportError:
        pass
    else:
        loaded = safetensors.numpy.load_file(path)
        assert sorted(loaded) == sorted(tensors)
        for name, (shape, values) in tensors.items():
            assert list(loaded[name].shape) == shape and loaded[name].ravel().tolist() == list(values), name
        agree.append("safetensors")
    try:
        import safetensors.torch
    except ImportError:
        pass
    else:
        loaded = safetensors.torch.load_file(path)
        for name, (shape, values) in tensors.items():
            assert list(loaded[name].shape) == shape and loaded[name].flatten().tolist() == list(values), name
        agree.append("torch")
    return agree


def main():
    path = sys.argv[1]
    metadata, tensors = parse(path)
    about = {}
    for name, (shape, values) in tensors.items():
        about[name] = {"shape": shape, "sum": sum(values), "first": values[0] if values else None,
                       "last": values[-1] if values else None}
    print(json.dumps({"metadata": metadata, "tensors": about, "also": loaders(path, tensors)}))


if __name__ == "__main__":
    main()
