"""Ranks that wait, that are lost, that never met."""

from __future__ import annotations

from hf_recipes.doctor.log.signature import Signature

_TORCH = "torch 2.13, provoked"
_LOOK_FIRST = "look for the first error of another rank above it"

SIGNATURES: dict[str, Signature] = {
    "nccl_timeout": Signature(
        needle="collective operation timeout",
        pattern=r"\[?Rank (?P<rank>\d+)\]? Watchdog caught collective operation timeout: WorkNCCL\(SeqNum=\d+, "
        r"OpType=(?P<op>\w+).*?Timeout\(ms\)=(?P<limit>\d+)\d{3}\)",
        cause="Rank <rank> waited for the others in <op> until its patience of <limit> s was over: some rank "
        "never came "
        "there. It left early, got other batches, is still preparing data or saving, or the network between them "
        "stands.",
        cure="look for a rank without this message: that is the one; prepare data ahead (hf-recipes prepare); compare "
        "rows and batches of the ranks; ddp_timeout: 7200 where saving or tokenising takes long; then the network "
        "(hf-recipes doctor --network, NCCL_DEBUG=INFO)",
        kind="symptom",
        example="[rank5]:[E602 11:17:52.185053341 ProcessGroupNCCL.cpp:632] [Rank 5] Watchdog caught collective "
        "operation timeout: WorkNCCL(SeqNum=5, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for "
        "600013 milliseconds before timing out.",
        seen="https://github.com/hiyouga/LlamaFactory/issues/8261",
    ),
    "nccl_watchdog_stuck": Signature(
        needle="watchdog got stuck",
        cause="NCCL's watchdog itself made no progress: a rank hangs within CUDA, or in a lock.",
        cure="look at the first error above; py-spy dump --pid PID shows where a rank stands; "
        "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC=1800 where a step is merely long",
        kind="symptom",
        example="[rank0]:[F1129 ProcessGroupNCCL.cpp:1557] [PG ID 0 PG GUID 0(default_pg) Rank 0] "
        "ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress in monitoring enqueued "
        "collectives.",
        seen="torch (CUDA builds, ProcessGroupNCCL.cpp)",
    ),
    "nccl_system_error": Signature(
        needle="ncclSystemError",
        cause="NCCL could not use a network interface or its shared memory.",
        cure="NCCL_DEBUG=INFO names it; NCCL_SOCKET_IFNAME=eth0 (the interface between the nodes), "
        "NCCL_IB_DISABLE=1 to "
        "try without InfiniBand; a larger /dev/shm (docker run --shm-size=16g)",
        example="ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error.",
        seen="https://github.com/pytorch/pytorch/issues/149984",
    ),
    "nccl_remote_error": Signature(
        needle="ncclRemoteError",
        cause="Another rank went away in the middle of a collective.",
        cure=_LOOK_FIRST,
        kind="symptom",
        example="ncclRemoteError: A call failed possibly due to a network error or a remote process exiting "
        "prematurely.",
        seen="https://github.com/NVIDIA/nccl/issues/2076",
    ),
    "nccl_duplicate_gpu": Signature(
        needle="Duplicate GPU detected",
        cause="Two ranks use the same GPU: more ranks were started than there are devices, or each did not take "
        "its own.",
        cure="--num_processes not above the number of GPUs (nvidia-smi -L); CUDA_VISIBLE_DEVICES as all ranks see it",
        example="Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1000",
        seen="https://github.com/NVIDIA/Megatron-LM/issues/661",
    ),
    "nccl_cuda_error": Signature(
        needle="ncclUnhandledCudaError",
        cause="A call of CUDA failed within NCCL: memory used up, a driver too old for this NCCL, or a GPU in trouble.",
        cure="NCCL_DEBUG=INFO names the call; leave more memory free; compare the driver (nvidia-smi) with "
        "torch's CUDA",
        kind="symptom",
        example="ncclUnhandledCudaError: Call to CUDA function failed.",
        seen="https://github.com/NVIDIA/nccl/issues/1410",
    ),
    "nccl_version": Signature(
        needle="undefined symbol: nccl",
        cause="torch found another version of NCCL than it was built with.",
        cure="take the foreign one out of LD_LIBRARY_PATH, and install torch's own again (pip install "
        "--force-reinstall torch)",
        example="ImportError: libtorch_cuda.so: undefined symbol: ncclCommRegister",
        seen="https://github.com/pytorch/pytorch/issues/120186",
    ),
    "no_peer_to_peer": Signature(
        needle="NCCL_P2P_DISABLE",
        pattern=r"RTX (3090|4000|4090|40\d\d|50\d\d).*NCCL_P2P_DISABLE",
        cause="These GPUs have no path between each other (peer to peer, InfiniBand), which must be said to NCCL.",
        cure="NCCL_P2P_DISABLE=1 NCCL_IB_DISABLE=1, or start by accelerate launch, which sets them",
        example="NotImplementedError: Using RTX 4000 series doesn't support faster communication broadband via P2P or "
        'IB. Please set `NCCL_P2P_DISABLE="1"` and `NCCL_IB_DISABLE="1"` or use `accelerate launch`',
        seen="accelerate 1.15 (accelerate/state.py)",
    ),
    "collectives_differ": Signature(
        needle="Detected mismatch between collectives on ranks",
        cause="Ranks called different collectives, or the same with different shapes: they do not run the same "
        "code, or "
        "got different numbers of batches.",
        cure="see that no rank leaves the loop early, and that every rank has the same model and number of rows",
        example="RuntimeError: Detected mismatch between collectives on ranks. Rank 0 is running collective: "
        "CollectiveFingerPrint(SequenceNumber=3, OpType=ALLREDUCE, …",
        seen="torch 2.13 (libtorch)",
    ),
    "peer_closed": Signature(
        needle="gloo/transport/tcp",
        pattern=r"gloo/transport/tcp.*(Connection (reset|closed) by peer|Connection refused|Broken pipe)",
        cause="Another rank went away in the middle of a collective of gloo.",
        cure=_LOOK_FIRST,
        kind="symptom",
        example="[rank0]: RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:537] Read error "
        "[127.0.0.1]:39639: Connection reset by peer.",
        seen=_TORCH,
    ),
    "store_lost": Signature(
        needle="TCPStore",
        pattern=r"(failed to recv, got 0 bytes|sendBytes failed|recvValue failed|Broken pipe|Connection reset by peer|"
        r"Connection was likely closed)",
        cause="The first rank, with which all others keep contact, went away.",
        cure=_LOOK_FIRST + ", above all of rank 0",
        kind="symptom",
        example="[W TCPStore.cpp:125] [c10d] recvValue failed on SocketImpl(fd=3): failed to recv, got 0 bytes. "
        "Connection was likely closed.",
        seen="torch 2.13 (libtorch)",
    ),
    "address_in_use": Signature(
        needle="EADDRINUSE",
        pattern=r"port: (?P<port>\d+).*EADDRINUSE",
        cause="The rendezvous port <port> is taken: by another run, or by what is left of an earlier one.",
        cure="--main_process_port 29501 (torchrun --master_port); ps aux | grep python shows leftovers",
        example="torch.distributed.DistNetworkError: The server socket has failed to listen on any local network "
        "address. port: 29500, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use",
        seen=_TORCH,
    ),
    "port_in_use": Signature(
        needle="Tried to launch distributed communication on port",
        pattern=r"on port `(?P<port>\d+)`",
        cause="The rendezvous port <port> is taken: by another run, or by what is left of an earlier one.",
        cure="--main_process_port 0 takes a free one",
        example="ConnectionError: Tried to launch distributed communication on port `29500`, but another process is "
        "utilizing it. Please specify a different port (such as using the `--main_process_port` flag …",
        seen="accelerate 1.15 (accelerate/utils/launch.py)",
    ),
    "first_machine_unreachable": Signature(
        needle="The client socket has timed out",
        pattern=r"timed out after (?P<limit>\d+)ms while trying to connect to \((?P<host>[^,]+), (?P<port>\d+)\)",
        cause="The first machine does not answer at <host>, port <port>: the address is not right, a firewall stands "
        "between, or its launcher has not been started.",
        cure="--main_process_ip as the other machines reach it (ping), the port open, and the first machine's command "
        "running; hf-recipes doctor --network measures the way",
        example="torch.distributed.DistNetworkError: The client socket has timed out after 60000ms while trying to "
        "connect to (127.0.0.1, 49471).",
        seen=_TORCH,
    ),
    "ranks_missing": Signature(
        needle="waiting for clients",
        pattern=r"Timed out after (?P<limit>\d+) seconds waiting for clients\. (?P<there>\d+)/(?P<asked>\d+) clients "
        r"joined",
        cause="Only <there> of <asked> processes came to the rendezvous within <limit> s.",
        cure="start the command on every machine, with the same --num_machines, --num_processes and port, and its own "
        "--machine_rank",
        example="torch.distributed.DistStoreError: Timed out after 901 seconds waiting for clients. 1/2 clients "
        "joined.",
        seen=_TORCH,
    ),
    "rendezvous_timeout": Signature(
        needle="RendezvousTimeoutError",
        cause="The machines of a torchrun job did not all come to the rendezvous in time.",
        cure="the same --rdzv-endpoint, --rdzv-id and --nnodes on all; the port open between them",
        example="torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError",
        seen="torch 2.13 (torch/distributed/elastic/rendezvous/api.py)",
    ),
    "no_address": Signature(
        needle="cannot be retrieved",
        pattern=r"network addresses of \((?P<host>[^,]+), \d+\) cannot be retrieved",
        cause="The name <host> has no address here.",
        cure="give an IP address as --main_process_ip, or put the name into /etc/hosts",
        example="[W socket.cpp:771] [c10d] The IPv6 network addresses of (no.such.host.invalid, 29500) cannot be "
        "retrieved (gai error: -2 - Name or service not known).",
        seen=_TORCH,
    ),
    "rank_variables": Signature(
        needle="environment variable",
        pattern=r"env:// rendezvous: environment variable (?P<name>\w+) expected, but not set",
        cause="The script expects a launcher, and was started by plain python (<name> is not set).",
        cure="hf-recipes sft --num_processes N, accelerate launch … or torchrun …",
        example="ValueError: Error initializing torch.distributed using env:// rendezvous: environment variable RANK "
        "expected, but not set",
        seen=_TORCH,
    ),
    "child_failed": Signature(
        needle="ChildFailedError",
        cause="A launcher says that a rank failed; why stands above it.",
        cure="look at the first traceback above, of the rank that 'Root Cause' names",
        kind="summary",
        example="torch.distributed.elastic.multiprocessing.errors.ChildFailedError:",
        seen=_TORCH,
    ),
    "launcher_failed": Signature(
        needle="returned non-zero exit status",
        cause="A launcher says that the script failed; why stands above it.",
        cure="look at the traceback above it",
        kind="summary",
        example="subprocess.CalledProcessError: Command '['python', 'train.py']' returned non-zero exit status 1.",
        seen="accelerate 1.15, provoked",
    ),
    "deepspeed_exits": Signature(
        needle="exits with return code =",
        pattern=r"exits with return code = (?P<code>(?!-9\b)-?[1-9]\d*)",
        cause="DeepSpeed's launcher says that a rank ended with code <code>; why stands above it.",
        cure="look at the first traceback above it",
        kind="summary",
        example="[2024-03-01 10:00:00,000] [ERROR] [launch.py:322:sigkill_handler] ['python', 'train.py'] exits with "
        "return code = 1",
        seen="deepspeed 0.19 (launcher/launch.py)",
    ),
    "closing_signal": Signature(
        needle="closing signal SIG",
        cause="A launcher ends the other ranks, because one failed or because it was asked to stop.",
        cure=_LOOK_FIRST,
        kind="summary",
        example="W1130 19:19:14.219000 4839 torch/distributed/elastic/multiprocessing/api.py:1028] Sending "
        "process 4887 "
        "closing signal SIGTERM",
        seen=_TORCH,
    ),
}
