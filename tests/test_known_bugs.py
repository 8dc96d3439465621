"""What people reported of other runtimes is right here; ``docs/known-bugs-of-others.md`` lists it."""

import numpy as np
import pytest

import minitvm
from tests.known_bugs import REPORTS, Report
from tests.known_bugs.page import PAGE, page


@pytest.mark.parametrize("report", REPORTS, ids=lambda r: r.name)
def test_is_right_here(report: Report) -> None:
    case = report.make()
    for level in (0, 3):
        if case.want is None:
            with pytest.raises(minitvm.MiniTVMError):
                minitvm.InferenceSession(case.model, opt_level=level).run(None, dict(case.feeds))
            continue
        found = minitvm.InferenceSession(case.model, opt_level=level).run(None, dict(case.feeds))
        for got, want in zip(found, case.want, strict=True):
            assert (got.shape, got.dtype) == (want.shape, want.dtype), f"level {level}"
            np.testing.assert_allclose(got, want, rtol=case.within, atol=case.within, err_msg=f"level {level}")


def test_the_page_lists_them_all() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "python -m tests.known_bugs writes it anew"


def test_there_are_as_many_as_promised() -> None:
    assert len({(r.project, r.number) for r in REPORTS}) >= 60
