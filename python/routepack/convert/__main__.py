# SPDX-License-Identifier: Apache-2.0
"""`python -m routepack.convert`."""

import sys

from routepack.convert.cli import main

sys.exit(main())
