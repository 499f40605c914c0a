# SPDX-License-Identifier: Apache-2.0
"""Adapters: the common core, and each framework on recorded shapes and, where a checkout is named, on its own code."""
