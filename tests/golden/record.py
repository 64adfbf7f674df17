"""Records the golden numbers: ``python -m tests.golden.record [NAME]...``.

Without names, those of cases that are not recorded yet. What is recorded was found at commit
4e2ebc8, and for ``methods`` at 2190f67, each before a rebuild; of MOON, FedNova, FedAvgM and FedLC
as they came, on an Intel Xeon. A number is recorded anew only where a change of results is
intended, and the commit that does it says why.
"""

import sys
import tempfile
from pathlib import Path

import torch
from threadpoolctl import threadpool_limits

from tests.golden.cases import CASES
from tests.golden.numbers import FILE, machine, plain, read, write


def main(names):
    """Runs the cases, and writes what they found."""
    torch.set_num_threads(1)
    recorded = read() if FILE.is_file() else {"machine": machine(), "cases": {}}
    assert recorded["machine"] == machine(), "record all anew, on one machine: remove the file"
    for name in names or [name for name in CASES if name not in recorded["cases"]]:
        with tempfile.TemporaryDirectory() as folder, threadpool_limits(1):
            recorded["cases"][name] = plain(CASES[name](Path(folder)))
        print(name, file=sys.stderr)
    recorded["cases"] = {name: recorded["cases"][name] for name in CASES}
    write(recorded)


if __name__ == "__main__":
    main(sys.argv[1:])
