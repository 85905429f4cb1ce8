"""`python -m hipcli`, kept from mistaking the checkout's own folders for installed packages."""

import sys

# `-m` puts the current folder first on sys.path, where a checkout's kernels/ and cache/
# would shadow the packages of those names that transformers probes for.
if not getattr(sys.flags, "safe_path", False):
    sys.path.pop(0)

from hipcli.cli import main  # noqa: E402  (the path must be clean first)

main()
