# SPDX-License-Identifier: Apache-2.0
"""`python -m routepack.calibrate`."""

import sys

from routepack.calibrate.cli import main

sys.exit(main())
