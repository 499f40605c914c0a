# SPDX-License-Identifier: Apache-2.0
import shutil

import pytest

import launch


def pytest_generate_tests(metafunc):
    if "flavour" in metafunc.fixturenames:
        metafunc.parametrize("flavour", launch.flavours())


@pytest.fixture(autouse=True, scope="session")
def an_mpi_is_there():
    assert launch.flavours(), f"{launch.BIN}: no test programs; build the release preset where an MPI is installed"
    for flavour in launch.flavours():
        assert shutil.which(launch.LAUNCHERS[flavour]), f"{launch.LAUNCHERS[flavour]}: not installed"
