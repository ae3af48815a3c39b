# SPDX-License-Identifier: Apache-2.0
"""Fixtures: a private daemon for each test file, and random seeds that failures print."""
import os
import random

import numpy
import pytest

import sparsekv

SEED = int(os.environ.setdefault("SKV_SEED", str(random.SystemRandom().randrange(1 << 32))))


def pytest_report_header() -> str:
    return f"SKV_SEED={SEED}, libsparsekv-client {sparsekv.version()}"


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> numpy.random.Generator:
    return numpy.random.default_rng([SEED, *request.node.name.encode()])


@pytest.fixture(scope="module")
def client():
    with sparsekv.private(2 << 30) as client:
        yield client
