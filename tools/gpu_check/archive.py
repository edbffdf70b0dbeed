"""A results folder as one file: what is brought back from a borrowed machine, and taken there again."""

import json
import os
import tarfile
import zlib

from . import results

NAME = "gpu-check.tgz"


class NoArchive(Exception):
    """Why a file is none."""


def _names(folder):
    """What is packed: all but the build, which is large and can be made again, and what is being written."""
    found = []
    for place, folders, files in os.walk(folder):
        folders.sort()
        if place == folder and "build" in folders:
            folders.remove("build")
        found += [os.path.relpath(os.path.join(place, name), folder) for name in sorted(files)
                  if name != NAME and not name.endswith(".new")]
    return found


def write(folder, path):
    """There whole or not at all: the machine may be taken away meanwhile."""
    with tarfile.open(path + ".new", "w:gz") as tar:
        for name in _names(folder):
            tar.add(os.path.join(folder, name), name, recursive=False)
    os.replace(path + ".new", path)


def _contents(tar):
    """Names and bytes; nothing of it is on the disk before all is known to be good."""
    found = {}
    for member in tar:
        parts = member.name.split("/")
        if not member.isfile() or parts[0] in ("", "build") or ".." in parts:
            raise NoArchive(f"'{member.name}' in it is not for a results folder")
        found[member.name] = tar.extractfile(member).read()
    return found


def _check(found):
    try:
        packed = json.loads(found["results.json"])
    except (KeyError, ValueError):
        packed = None
    if not isinstance(packed, dict) or packed.get("format") != results.FORMAT:
        raise NoArchive(f"there is no results.json of format {results.FORMAT} in it")


def unpack(path, folder):
    """Into the results folder, over files of the same names."""
    try:
        with tarfile.open(path, "r:gz") as tar:
            found = _contents(tar)
    except (OSError, EOFError, tarfile.TarError, zlib.error) as error:
        raise NoArchive(str(error)) from error
    _check(found)
    for name, data in found.items():
        place = os.path.join(folder, name)
        os.makedirs(os.path.dirname(place), exist_ok=True)
        with open(place + ".new", "wb") as file:
            file.write(data)
        os.replace(place + ".new", place)
