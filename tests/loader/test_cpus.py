"""Number of processors: affinity, and quotas of both versions of cgroups."""

import os

import pytest

from fastshard.loader.threads.cpus import count_cpus, read_quota

V2 = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n"
V1 = (
    "31 23 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
    "32 23 0:28 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
)


@pytest.fixture
def system(tmp_path):
    """Return a function that writes the files of a kernel."""

    def write(mounts, groups, files):
        texts = {"proc/self/mountinfo": mounts, "proc/self/cgroup": groups, **files}
        for name, text in texts.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return str(tmp_path)

    return write


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("max 100000\n", None),
        ("200000 100000\n", 2),
        ("150000 100000\n", 2),
        ("1000 100000\n", 1),
        ("0 100000\n", None),
        ("100000 0\n", None),
        ("many few\n", None),
        ("", None),
        ("\xff", None),
        ("100000 100000 100000\n", None),
    ],
)
def test_quota_of_version_2(system, text, expected):
    root = system(V2, "0::/\n", {"sys/fs/cgroup/cpu.max": text})
    assert read_quota(root) == expected


def test_the_least_quota_of_all_groups_above_counts(system):
    files = {
        "sys/fs/cgroup/a/b/cpu.max": "max 100000\n",
        "sys/fs/cgroup/a/cpu.max": "300000 100000\n",
        "sys/fs/cgroup/cpu.max": "400000 100000\n",
    }
    assert read_quota(system(V2, "0::/a/b\n", files)) == 3


def test_a_container_sees_its_own_group_as_the_root(system):
    mounts = V2.replace(" / /sys", " /docker/7 /sys")
    files = {"sys/fs/cgroup/cpu.max": "200000 100000\n"}
    assert read_quota(system(mounts, "0::/docker/7\n", files)) == 2


@pytest.mark.parametrize(
    ("quota", "expected"), [("-1\n", None), ("250000\n", 3), ("x", None)]
)
def test_quota_of_version_1(system, quota, expected):
    folder = "sys/fs/cgroup/cpu,cpuacct/job"
    files = {
        f"{folder}/cpu.cfs_quota_us": quota,
        f"{folder}/cpu.cfs_period_us": "100000\n",
    }
    groups = "4:memory:/\n3:cpu,cpuacct:/job\n"
    assert read_quota(system(V1, groups, files)) == expected


@pytest.mark.parametrize("mounts", ["", "1 2\n - \n", V2 + "\n\n", "\x00" * 100])
@pytest.mark.parametrize("groups", ["", "::\n", "0::/../..\n", "no\n"])
def test_files_of_other_forms_mean_no_quota(system, mounts, groups):
    assert read_quota(system(mounts, groups, {})) is None


def test_processors_are_those_of_the_affinity_and_at_least_one(system, tmp_path):
    assert read_quota(str(tmp_path / "none")) is None
    root = system(V2, "0::/\n", {"sys/fs/cgroup/cpu.max": "1000 100000\n"})
    assert count_cpus(root) == 1
    if hasattr(os, "sched_setaffinity"):
        allowed = os.sched_getaffinity(0)
        assert count_cpus(str(tmp_path / "none")) == len(allowed)
        try:
            os.sched_setaffinity(0, {min(allowed)})
            assert count_cpus() == 1
        finally:
            os.sched_setaffinity(0, allowed)
