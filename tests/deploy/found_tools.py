"""Programs that tests of deploy/ use where they are there."""

import os
import pathlib
import shutil
import sys

SKIPPED = 77
SOURCE = pathlib.Path(__file__).resolve().parents[2]


def find(program):
    """In $FORESHARD_DEPLOY_TOOLS, the folder of tools/install-deploy-tools, or on the PATH; None: nowhere."""
    folder = pathlib.Path(os.environ.get("FORESHARD_DEPLOY_TOOLS", SOURCE / ".deploy-tools"))
    own = folder / "bin" / program
    return str(own) if own.exists() else shutil.which(program)


def schemas():
    """The folder of Kubernetes' own object schemas, or None."""
    folder = pathlib.Path(os.environ.get("FORESHARD_DEPLOY_TOOLS", SOURCE / ".deploy-tools")) / "schemas"
    return folder if folder.exists() else None


def skip(why):
    print(f"skipped: {why}")
    sys.exit(SKIPPED)
