"""axolotl has no key for the Trainer's `use_cpu`; a plugin may add training arguments."""

from axolotl.integrations.base import BasePlugin


class OnCPU(BasePlugin):
    """Trains on the CPU."""

    def get_training_args(self, cfg):
        return {"use_cpu": True}
