"""The time that `import sharpmax` takes, in fresh processes: it is to stay under 0.15 s.

python benchmarks/import_time.py        prints the median and the spread of 30 processes
"""

import statistics
import subprocess
import sys

CODE = """
import time
start = time.perf_counter()
import sharpmax
print(time.perf_counter() - start)
"""


def main() -> None:
    command = [sys.executable, "-c", CODE]
    seconds = sorted(
        float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        for _ in range(30)
    )
    print(
        f"import sharpmax: median {statistics.median(seconds):.3f} s, "
        f"fastest {seconds[0]:.3f} s, slowest {seconds[-1]:.3f} s"
    )


if __name__ == "__main__":
    main()
