"""Reads checkpoints by the tables of server/README.md: manifests, and parameters as any
loader of safetensors would."""

import array
import json
import os
import re
import struct
import sys

from .journal import checksum

_NAME = re.compile(r"checkpoint\.([0-9]{10})")


class BadCheckpoint(Exception):
    """A checkpoint is not what its manifest says."""


def folders_in(directory):
    """Checkpoints in a state directory, oldest first."""
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return []
    return [os.path.join(directory, name) for name in sorted(names) if _NAME.fullmatch(name)]


def number_of(folder):
    return int(_NAME.fullmatch(os.path.basename(folder)).group(1))


def manifest(folder):
    """The manifest, its checksum compared; BadCheckpoint."""
    path = os.path.join(folder, "manifest.json")
    try:
        with open(path, "rb") as file:
            text = file.read()
        document = json.loads(text)
    except (OSError, ValueError) as error:
        raise BadCheckpoint(f"{path}: {error}") from error
    key = text.rfind(b'"xxh3"')
    comma = text.rfind(b",", 0, key)
    if comma < 0 or f"{checksum(text[:comma]):016x}" != document.get("xxh3"):
        raise BadCheckpoint(f"{path}: its checksum is wrong")
    return document


def check(folder):
    """The manifest of a checkpoint of which every file is whole; BadCheckpoint."""
    document = manifest(folder)
    if document.get("checkpoint") != number_of(folder):
        raise BadCheckpoint(f"{folder}: it says that it is checkpoint {document.get('checkpoint')}")
    for entry in document["files"]:
        path = os.path.join(folder, entry["name"])
        try:
            with open(path, "rb") as file:
                data = file.read()
        except OSError as error:
            raise BadCheckpoint(f"{path}: {error.strerror}") from error
        if len(data) != entry["bytes"] or f"{checksum(data):016x}" != entry["xxh3"]:
            raise BadCheckpoint(f"{path}: length or checksum is wrong")
    return document


def parameters(path):
    """All values of a safetensors file, in the order in which they lie (array of float)."""
    with open(path, "rb") as file:
        length, = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
        data = file.read()
    header.pop("__metadata__", None)
    at = 0
    for name, tensor in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        begin, end = tensor["data_offsets"]
        if tensor["dtype"] != "F32" or begin != at:
            raise BadCheckpoint(f"{path}: tensor {name} is {tensor['dtype']} at {begin}, not F32 at {at}")
        at = end
    if at != len(data):
        raise BadCheckpoint(f"{path}: {len(data)} bytes of values where the header says {at}")
    values = array.array("f")
    values.frombytes(data)
    if sys.byteorder == "big":
        values.byteswap()
    return values


def newest_parameters(directories):
    """(values of all shards in order, their manifests) of each shard's newest checkpoint, which
    must be whole. `directories`: state directories, by shard."""
    values, manifests = array.array("f"), []
    for shard, directory in enumerate(directories):
        folders = folders_in(directory)
        if not folders:
            raise BadCheckpoint(f"{directory}: there is no checkpoint")
        document = check(folders[-1])
        if (document["shard"], document["shards"]) != (shard, len(directories)):
            raise BadCheckpoint(f"{folders[-1]}: of shard {document['shard']} of {document['shards']}")
        name = f"parameters-{shard + 1:05d}-of-{len(directories):05d}.safetensors"
        values.extend(parameters(os.path.join(folders[-1], name)))
        manifests.append(document)
    return values, manifests
