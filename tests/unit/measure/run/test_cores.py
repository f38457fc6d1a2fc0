from anatune.measure.run.cores import physical_cores, plan_cores


def test_one_thread_is_timed_on_the_last_core_and_built_for_on_the_others():
    plan = plan_cores(1, {0: (0,), 1: (1,)})
    assert plan == ((1,), (0,), 1, True, 1)
    plan = plan_cores(2, {0: (0, 4), 1: (1, 5), 2: (2, 6), 3: (3, 7)})
    assert plan.runner == (2, 3)
    assert plan.builders == (0, 4, 1, 5)
    assert plan.overlap
    assert (plan.num_builders, plan.num_guests) == (2, 2)


def test_the_runners_cores_help_where_few_cores_build():
    plans = [plan_cores(1, {core: (core,) for core in range(count)}) for count in (2, 3, 4, 5, 16)]
    assert [(plan.num_builders, plan.num_guests) for plan in plans] == [(1, 1), (2, 1), (3, 1), (4, 0), (4, 0)]
    assert plan_cores(1, {}).num_guests == 0


def test_all_cores_take_turns():
    plan = plan_cores(2, {0: (0,), 1: (1,)})
    assert plan == ((0, 1), (0, 1), 2, False, 0)
    assert plan_cores(1, {3: (3,)}) == ((3,), (3,), 1, False, 0)


def test_without_an_affinity_mask_nothing_is_pinned():
    plan = plan_cores(1, {})
    assert plan.runner == plan.builders == ()
    assert plan.num_builders >= 1


def test_threads_of_one_core_are_one_core(tmp_path):
    for cpu, siblings in {0: "0,4", 1: "1-2", 2: "1-2", 4: "0,4"}.items():
        folder = tmp_path / f"sys/devices/system/cpu/cpu{cpu}/topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(siblings + "\n")
    assert physical_cores(tmp_path, {0, 1, 2, 4}) == {0: (0, 4), 1: (1, 2)}
    assert physical_cores(tmp_path, {2, 4}) == {1: (2,), 0: (4,)}
    assert physical_cores(tmp_path / "none", {5, 6}) == {5: (5,), 6: (6,)}
