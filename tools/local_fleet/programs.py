"""Where the three programs are."""

import os
from dataclasses import dataclass


@dataclass
class Programs:
    """`folder` holds foreshard, foreshard-server and foreshard-worker."""
    folder: str

    def path(self, name):
        return os.path.join(self.folder, name)
