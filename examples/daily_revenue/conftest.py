"""One Spark session for all tests of the project."""

import pytest

from headrace.testing import local_session


@pytest.fixture(scope="session")
def spark(tmp_path_factory):
    with local_session(tmp_path_factory.mktemp("spark")) as session:
        yield session
