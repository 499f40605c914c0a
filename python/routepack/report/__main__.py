# SPDX-License-Identifier: Apache-2.0
"""`python -m routepack.report`."""

import sys

from routepack.report.cli import main

sys.exit(main())
