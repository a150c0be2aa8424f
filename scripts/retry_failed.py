"""Tell tests that fail from tests that failed once: run each that failed again, alone.

    PENSTOCK_TEST_REPORT=FILE pytest …  ||  python scripts/retry_failed.py FILE

A test that fails again fails the run, and so do more than five that pass then. Those that pass are
printed as `FLAKY:` with their first failure, last of all, and written into `flaky.txt` beside FILE.
A run that ended otherwise than with failed tests (a broken import, a linter, an interrupt) is not
tried again.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

MOST_FLAKY = 5
_PASSED, _FAILED = 0, 1  # pytest's exit statuses: all passed, some tests failed


def main(report: Path) -> int:
    try:
        found = json.loads(report.read_text())
    except FileNotFoundError:
        print("The run ended before its tests did: nothing is tried again.")
        return 1
    failures: dict[str, str] = found["failures"]
    if found["status"] != _FAILED or not failures:
        print(f"pytest ended with status {found['status']}: nothing is tried again.")
        return 1
    if len(failures) > MOST_FLAKY:
        print(f"{len(failures)} tests failed, of which {MOST_FLAKY} may be flaky: the run fails.")
        return 1
    alone = report.with_name("alone.json")
    failing = [test for test in failures if not _passes(test, alone)]
    flaky = {test: first for test, first in failures.items() if test not in failing}
    lines = [f"FLAKY: {test}\n{first}\n" for test, first in flaky.items()]
    (report.parent / "flaky.txt").write_text("\n".join(lines))
    print("\n".join(lines))
    for test in failing:
        print(f"FAILED TWICE: {test}")
    print(f"{len(flaky)} flaky, {len(failing)} failed twice")
    return 1 if failing else 0


def _passes(test: str, report: Path) -> bool:
    """Whether `test` passes alone. A process that ends before it could report has failed."""
    print(f"Trying again, alone: {test}", flush=True)
    report.unlink(missing_ok=True)
    environment = os.environ | {"PENSTOCK_TEST_REPORT": str(report)}
    subprocess.run([sys.executable, "-m", "pytest", test], env=environment, check=False)
    return report.exists() and json.loads(report.read_text())["status"] == _PASSED


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
