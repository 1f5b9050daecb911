"""This machine, really measured."""

from __future__ import annotations

import psutil
import pytest

from hf_recipes.core.errors import UserError
from hf_recipes.plan.hardware import here
from hf_recipes.plan.hardware.here import measure_machine


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    patch = pytest.MonkeyPatch()
    patch.setattr(here, "_WRITTEN_BYTES", 1 << 22)
    patch.setattr("hf_recipes.core.peaks._LONGEST_SECONDS", 0.005)
    yield measure_machine(tmp_path_factory.mktemp("disk"), copied_bytes=1 << 26)
    patch.undo()


def test_a_machine_without_a_gpu_is_measured(machine):
    (device,) = machine.devices
    assert device.kind == "cpu" and device.catalogue is None
    assert 1e8 < device.flops["float32"] < 1e14
    assert 1e8 < device.bandwidth < 1e13
    assert 0 < device.free_bytes <= device.memory_bytes <= psutil.virtual_memory().total
    assert machine.cores >= 1 and machine.ram_free_bytes <= machine.ram_bytes
    assert 1e5 < machine.disk_write < 1e12


def test_it_can_be_planned_for(machine):
    accelerator = machine.devices[0].as_accelerator()
    assert accelerator.memory_bytes == machine.devices[0].free_bytes  # of the machine's own memory, never all is there
    assert accelerator.flops == machine.devices[0].flops
    assert (accelerator.key, accelerator.memory_source, accelerator.link) == ("here", "measured", 0.0)


def test_a_copy_counts_reading_and_writing(monkeypatch):
    monkeypatch.setattr(here, "_best_seconds", lambda action, device: 0.5)
    assert here._copy_rate("cpu", 1 << 20) == (1 << 20) / 0.5


def test_a_directory_that_is_not_there_is_one_sentence(tmp_path):
    with pytest.raises(UserError, match=r"'.*gone' cannot be read or written"):
        here._disk_write(tmp_path / "gone")


@pytest.mark.gpu
def test_a_gpu_is_found_in_the_catalogue():
    import torch

    machine = measure_machine()
    assert len(machine.devices) == torch.cuda.device_count()
    for device in machine.devices:
        assert device.host_link > 1e9 and device.bandwidth > 1e11
        if device.catalogue:
            assert device.memory_bytes == pytest.approx(device.catalogue.memory_bytes, rel=0.05)
            assert device.flops["float16"] < 1.05 * device.catalogue.flops["float16"]
