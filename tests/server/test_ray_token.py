"""A real Ray of this machine lets in nobody without its token."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from cutaway.server.clusters.cluster_head import ClusterFolder, end_head
from program import command, environment

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed: cutaway[ray]"),
]


# In a process that ends, as `cluster up` does: the head is no child of the test's.
START = """
import json, sys
from pathlib import Path
from cutaway.server.clusters.cluster_head import ClusterFolder, start_head
print(json.dumps(start_head(ClusterFolder(Path(sys.argv[1])), cpus=1, gpus=0)))
"""


def asked(folder: Path, token: Path | None) -> subprocess.CompletedProcess[str]:
    """What `status` says to who has a token, or none."""
    given = {} if token is None else {"RAY_AUTH_TOKEN_PATH": str(token)}
    return subprocess.run(
        command("cluster", "status", "--folder", str(folder)),
        capture_output=True,
        text=True,
        timeout=300,
        env=environment(HOME=str(folder), **given),
        check=False,
    )


@pytest.mark.timeout(900)
def test_scale_y2_a_missing_or_another_token_is_refused(tmp_path: Path) -> None:
    own = ClusterFolder(tmp_path / "own")
    own.make()
    head, address, files = json.loads(
        subprocess.run(
            [sys.executable, "-c", START, str(own.path)],
            capture_output=True,
            text=True,
            timeout=300,
            env=environment(),
            check=True,
        ).stdout
    )
    try:
        other = ClusterFolder(tmp_path / "other")
        other.make()  # with a token of its own
        other.keep({"address": address})
        for token in (None, other.token_file):
            said = asked(other.path, token)
            assert said.returncode != 0
            assert "does not take the token of this host" in said.stderr, said.stderr
            assert "set RAY_AUTH_TOKEN_PATH" in said.stderr.replace("Set", "set")
        let_in = asked(other.path, own.token_file)
        assert "token" not in let_in.stderr, let_in.stderr
    finally:
        assert any(end_head(head) for _ in range(3)), "a busy machine takes its time"
        shutil.rmtree(files, ignore_errors=True)
