"""Memory of devices, of the host, shared memory, disks."""

from __future__ import annotations

from hf_recipes.doctor.log.signature import Signature

_TORCH = "torch 2.13"
_BY_PHASE = {
    "forward": "per_device_train_batch_size: 1 with gradient_accumulation_steps times as many (the same batch); "
    "activation_checkpointing: true; a shorter max_length; loss_kernel: liger with a large vocabulary",
    "backward": "activation_checkpointing: true (30 to 50 % of the activations, about 25 % more time); "
    "per_device_train_batch_size: 1 with accumulation; a smaller reduce bucket (ddp_bucket_cap_mb: 10)",
    "optimizer step": "optim: paged_adamw_8bit; method: lora or qlora; strategy: zero2 or zero3, with offload",
    "evaluation": "per_device_eval_batch_size: 1; prediction_loss_only: true (else logits are collected: rows × length "
    "× vocabulary), or eval_accumulation_steps: 1",
    "save": "save sharded (FSDP or ZeRO-3 state) instead of gathering the whole model on one rank",
    "loading": "dtype: bf16, or method: qlora; see what else uses the device (nvidia-smi)",
}

SIGNATURES: dict[str, Signature] = {
    "gpu_out_of_memory": Signature(
        needle="out of memory",
        pattern=r"(OutOfMemoryError|RuntimeError|AcceleratorError): (HIP|CUDA|XPU|MPS|CUDA error)"
        r"[^.]*out of memory(.*?[Tt]ried to allocate (?P<size>[\d.]+ ?[KMG]i?B))?",
        cause="The device's memory is used up (<size> more were asked for).",
        cure="smaller micro-batches with more accumulation; activation_checkpointing: true; a shorter max_length; "
        "hf-recipes plan --config RECIPE says what fits",
        phase_cures=_BY_PHASE,
        example="torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of "
        "23.69 GiB of which 1.29 GiB is free.",
        seen="https://github.com/mistralai/mistral-finetune/issues/69",
    ),
    "host_out_of_memory": Signature(
        needle="DefaultCPUAllocator",
        pattern=r"DefaultCPUAllocator: (not enough memory|can't allocate memory): you tried to allocate "
        r"(?P<size>\d+) bytes",
        cause="The machine's own memory is used up: <size> bytes could not be had.",
        cure="fewer dataloader_num_workers; streaming: true for large data; no CPU offload (strategy without offload); "
        "dtype: bf16; a machine with more memory",
        phase_cures=_BY_PHASE,
        example="RuntimeError: [enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate "
        "memory: you tried to allocate 4503599627370496 bytes. Error code 12 (Cannot allocate memory)",
        seen=f"{_TORCH}, provoked",
    ),
    "memory_error": Signature(
        needle="MemoryError",
        pattern=r"^(numpy\.[\w.]*)?(_Array)?MemoryError\b",
        cause="Python could not get memory: the machine's own is used up.",
        cure="fewer workers (dataset_num_proc, dataloader_num_workers); streaming: true; a smaller data set first",
        example="MemoryError",
        seen="Python 3.11, provoked",
    ),
    "killed_by_system": Signature(
        needle=("SIGKILL", "exitcode", "return code = -9", "Killed"),
        pattern=r"Signal 9 \(SIGKILL\) received by PID|died with <Signals\.SIGKILL: 9>|exitcode\s*:\s*-9\b|"
        r"return code = -9\b|line \d+: +\d+ Killed\b|^Killed\s*$",
        cause="A process was killed from outside (signal 9), without a word of its own: nearly always the system's or "
        "the container's memory killer, since no traceback is printed.",
        cure="see whether memory was the reason (dmesg | grep -i oom; docker inspect, kubectl describe: OOMKilled); "
        "then fewer dataloader_num_workers, no CPU offload, streaming: true, loading in 16 bits, or a larger limit",
        kind="symptom",
        example="  traceback : Signal 9 (SIGKILL) received by PID 4149",
        seen=f"{_TORCH}, provoked",
    ),
    "slurm_out_of_memory": Signature(
        needle=("slurmstepd: error", "Some of your processes", "Some of the step tasks"),
        pattern=r"(?i)slurmstepd: error:.*(oom[-_ ]?kill|OOM Killed)|Some of (your|the step) (processes|tasks) "
        r"(may have "
        r"been|have been) (killed by the cgroup|OOM Killed)",
        cause="Slurm's memory limit of the job was reached, and a process was killed.",
        cure="sbatch --mem=0 (all of the node) or a larger --mem; fewer dataloader_num_workers; no CPU offload",
        example="slurmstepd: error: Detected 1 oom_kill event in StepId=1234.0. Some of the step tasks have been OOM "
        "Killed.",
        seen="https://github.com/nextflow-io/nextflow/issues/5932",
    ),
    "dataloader_shared_memory": Signature(
        needle="Bus error",
        pattern=r"DataLoader worker \(pid[^)]*\) is killed by signal: Bus error|[Bb]us error.*shared memory",
        cause="A data-loading worker found /dev/shm full (64 MB is Docker's default).",
        cure="docker run --shm-size=16g, or --ipc=host; else dataloader_num_workers: 0",
        example="RuntimeError: DataLoader worker (pid 53617) is killed by signal: Bus error. It is possible that "
        "dataloader's workers are out of shared memory. Please try to raise your shared memory limit.",
        seen="torch 2.13 (torch/utils/data, libtorch_python)",
    ),
    "shared_memory_full": Signature(
        needle=("shared memory", "unable to mmap"),
        pattern=r"unable to (allocate|open|mmap|write|resize) shared memory|unable to mmap \d+ bytes from file </torch",
        cause="Shared memory (/dev/shm) is full or its files are used up.",
        cure="docker run --shm-size=16g; remove what killed runs left in /dev/shm; fewer dataloader_num_workers",
        example="RuntimeError: unable to write to file </torch_12_3456_7>: unable to allocate shared memory(shm) for "
        "file </torch_12_3456_7>: No space left on device (28)",
        seen="torch 2.13 (libtorch)",
    ),
    "dataloader_worker_died": Signature(
        needle="DataLoader worker",
        pattern=r"DataLoader worker \(pid(\(s\))?[^)]*\) (exited unexpectedly|is killed by signal: (Killed|Aborted|"
        r"Segmentation fault|Terminated))",
        cause="A data-loading worker died; what it said, if anything, stands above.",
        cure="dataloader_num_workers: 0 shows its own error; if it then works, memory was the reason",
        kind="symptom",
        example="RuntimeError: DataLoader worker (pid(s) 3667) exited unexpectedly",
        seen=f"{_TORCH}, provoked",
    ),
    "disk_full": Signature(
        needle="No space left on device",
        pattern=r"No space left on device(?! \(28\))",
        cause="The disk is full.",
        cure="make room or set output_dir, HF_HOME or TMPDIR to another disk; save_total_limit: 2; then resume "
        "from the "
        "last checkpoint that verifies (hf-recipes verify RUN): the newest may be cut short",
        example="OSError: [Errno 28] No space left on device: 'checkpoint-500/optimizer.pt'",
        seen="Python 3.11, provoked",
    ),
    "disk_quota": Signature(
        needle="Disk quota exceeded",
        cause="The quota of this user's directory is used up, though the disk may have room.",
        cure="set HF_HOME and output_dir to scratch space; see quota -s",
        example="OSError: [Errno 122] Disk quota exceeded: '/home/user/.cache/huggingface/hub/…'",
        seen="the C library's errno 122",
    ),
    "archive_cut_short": Signature(
        needle="PytorchStreamWriter failed",
        cause="A checkpoint could not be written to its end: a full disk or a network disk that went away.",
        cure="look at the free space (df -h) and resume from the last checkpoint that verifies (hf-recipes verify RUN)",
        example="RuntimeError: [enforce fail at inline_container.cc:664] . unexpected pos 5760 vs 5654 … "
        "PytorchStreamWriter failed writing file data/12: file write failed",
        seen="torch 2.13 (libtorch)",
    ),
    "too_many_files": Signature(
        needle="Too many open files",
        cause="The limit of open files is reached (workers share tensors by files).",
        cure="ulimit -n 65536; fewer dataloader_num_workers; torch.multiprocessing.set_sharing_strategy('file_system')",
        example="OSError: [Errno 24] Too many open files: '/dev/null'",
        seen="Python 3.11, provoked",
    ),
    "too_many_threads": Signature(
        needle=("start new thread", "Thread creation failed", "pthread_create failed"),
        pattern=r"can't start new thread|Thread creation failed: Resource temporarily unavailable|"
        r"pthread_create failed for thread",
        cause="No more threads or processes may be started: the limit of processes is reached.",
        cure="ulimit -u unlimited, a larger pids limit of the container, OMP_NUM_THREADS=1, fewer workers",
        example="RuntimeError: can't start new thread",
        seen="CPython (Modules/_threadmodule.c), libgomp, OpenBLAS",
    ),
    "cublas_memory": Signature(
        needle="CUBLAS_STATUS_",
        pattern=r"CUBLAS_STATUS_(ALLOC_FAILED|NOT_INITIALIZED)",
        cause="cuBLAS could not set itself up: the device's memory is used up, or an earlier step read outside of an "
        "array (a token or label out of range).",
        cure="smaller micro-batches; if it stays, CUDA_LAUNCH_BLOCKING=1 shows the step, and hf-recipes inspect "
        "the data",
        kind="symptom",
        example="RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        seen="torch (CUDA builds)",
    ),
    "io_error": Signature(
        needle="[Errno ",
        pattern=r"\[Errno (5|116|107)\] (Input/output error|Stale file handle|Transport endpoint is not connected)",
        cause="The disk or the network file system went away under the run.",
        cure="look at the mount (dmesg, mount); put output_dir on a local disk; resume when it is back",
        example="OSError: [Errno 116] Stale file handle",
        seen="the C library's errno 5, 107, 116",
    ),
}
