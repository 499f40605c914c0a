# SPDX-License-Identifier: Apache-2.0
"""`python -m routepack.evaluate`."""

import sys

from routepack.evaluate.cli import main

sys.exit(main())
