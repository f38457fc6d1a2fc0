"""Pieces of work: in their order, whoever does them."""

import os

from bench.experiments.processes import do_all


def test_forked_processes_inherit_what_cannot_be_sent():
    factor = 3
    pieces = list(range(7))
    alone = do_all(lambda piece: (factor * piece, os.getpid()), pieces, 1, str)
    shared = do_all(lambda piece: (factor * piece, os.getpid()), pieces, 2, str)
    assert [one for one, _ in alone] == [one for one, _ in shared] == [0, 3, 6, 9, 12, 15, 18]
    assert {process for _, process in alone} == {os.getpid()}
    assert os.getpid() not in {process for _, process in shared}
