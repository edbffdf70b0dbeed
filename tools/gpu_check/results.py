"""The results folder: a file a part, so that a run goes on where the last one ended."""

import hashlib
import json
import os
import time

from . import bundle

FORMAT = 1
# What became of a part. LEFT: time was up before it; the next run does it.
DONE, FAILED, IMPOSSIBLE, LEFT = "done", "failed", "not possible", "left"


def tree_checksum(root):
    """Of all that is built and run: another tree's results are not this one's."""
    sha = hashlib.sha256()
    for name in bundle.tree_files(root):
        if name.endswith(".md"):
            continue
        sha.update(name.encode() + b"\0")
        with open(os.path.join(root, name), "rb") as file:
            sha.update(file.read() + b"\0")
    return sha.hexdigest()[:16]


def begun(record):
    """Whether there was ever time for the part."""
    return record is not None and (record["status"] != LEFT or record["seconds"] > 0)


def _worth(record):
    """To compare records by: a verdict says more than any part of the data, and that more than a beginning."""
    data = record["data"] or ()
    figures = data.get("passed", 0) + len(data.get("failed", ())) if isinstance(data, dict) else len(data)
    return record["status"] != LEFT, figures, begun(record)


class Results:
    """`identity` is what a result depends on besides its part: tree, GPU, PyTorch."""

    def __init__(self, folder, identity):
        self.folder, self.identity = folder, identity
        os.makedirs(os.path.join(folder, "parts"), exist_ok=True)

    def _path(self, part):
        return os.path.join(self.folder, "parts", part.replace("/", "-") + ".json")

    def read(self, part):
        """The part's record where it is of this identity, else None."""
        record = self._read_any(part)
        return record if record and record.get("identity") == self.identity else None

    def _read_any(self, part):
        try:
            with open(self._path(part), encoding="utf-8") as file:
                record = json.load(file)
        except (OSError, ValueError):
            return None
        return record if record.get("format") == FORMAT else None

    def write(self, part, status, seconds, data=None, words=""):
        """Keeps the part, there whole or not at all; gives the record that counts. Where the time was up, that
        is the one before, should it say more; one of another tree, GPU or PyTorch is at least not lost to that."""
        record = {"format": FORMAT, "identity": self.identity, "part": part, "status": status,
                  "seconds": round(seconds, 1), "words": words, "data": data,
                  "date": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())}
        before = self._read_any(part)
        if status == LEFT and before and _worth(before) > _worth(record):
            return before if before.get("identity") == self.identity else record
        self._replace(self._path(part), json.dumps(record, indent=1))
        return record

    def write_file(self, name, text):
        path = os.path.join(self.folder, name)
        self._replace(path, text)
        return path

    @staticmethod
    def _replace(path, text):
        with open(path + ".new", "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(path + ".new", path)
