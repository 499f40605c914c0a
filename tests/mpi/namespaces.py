# SPDX-License-Identifier: Apache-2.0
"""Hosts for MPI jobs on one machine: namespaces of the kernel, wired up with virtual cables.

    head ─ mgmt0 ──┬──────────┬──────────┐      the launcher's network
                 mgmt0      mgmt0      mgmt0
                  h0         h1         h2      each, and head: own network, host name, processes, /dev/shm, IPC
                 data0      data0      data0
                   └──────────┴──────────┘      the ranks' network

The two networks are bridges in «switch», a set of namespaces without addresses. The hosts' processes are inside those
of head, where jobs are started.

A host lives as long as a pipe to its first process is open. When whoever made it ends, in whatever way, the pipe
closes, the first process ends, and the kernel ends all others in there and takes cables and mounts away. Nothing has a
name outside, so runs cannot clash.
"""

import contextlib
import os
import pathlib
import shutil
import signal
import subprocess
import time

import launch

MGMT, DATA = "10.77.0.", "10.78.0."
HEAD = 254
FORWARDING = "3"  # the state of a bridge's port
KINDS = ["--net", "--uts", "--ipc", "--mount", "--pid"]
PACKAGES = {  # Debian's
    "iproute2": ["ip", "tc"],
    "util-linux": ["nsenter", "unshare"],
    "mount": ["mount"],
    "hostname": ["hostname"],
}

# $1: name, $2: its /etc/hosts. «cat» keeps the host up until its standard input ends. It ignores SIGCHLD, so that what
# has lost its parent does not stay as a zombie: the kernel would wait for those of a host's processes that are in head.
# The first line is its number as the processes that made it see it: /proc is still theirs.
FIRST_PROCESS = """
read -r pid rest </proc/self/stat
hostname "$1"
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
mount --bind "$2" /etc/hosts
ip link set lo up
echo "$pid"
exec env --ignore-signal=CHLD cat >/dev/null
"""


class NotHere(Exception):
    """This machine, or this user, cannot have hosts; says why."""


class Host:
    """One set of namespaces. `pid` is its first process for us, `inner_pid` the same for processes in `parent`."""

    def __init__(self, name: str, hosts_file: pathlib.Path, parent: "Host | None" = None):
        self.name = name
        enter = parent.enter() if parent else []
        unshare = ["unshare", *KINDS, "--fork", "sh", "-ec", FIRST_PROCESS, "sh", name, str(hosts_file)]
        self._process = subprocess.Popen([*enter, *unshare], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                         stderr=subprocess.PIPE, text=True, start_new_session=True)
        first = self._process.stdout.readline().strip()
        if not first.isdigit():
            why = self._process.communicate()[1].strip()
            raise NotHere(f"{why or 'no answer'} (unshare {' '.join(KINDS)})")
        self.inner_pid = int(first)
        self.pid = _last_child(self._process.pid)

    def enter(self) -> list[str]:
        """In front of a command that is to run there."""
        return ["nsenter", "-t", str(self.pid), *KINDS]

    def ip(self, *words, tool="ip") -> str:
        """`ip` or `tc` in its network."""
        argv = ["nsenter", "-t", str(self.pid), "--net", tool, *map(str, words)]
        done = subprocess.run(argv, capture_output=True, text=True)
        if done.returncode != 0:
            raise OSError(f"{self.name}: {' '.join(argv[4:])}: {done.stderr.strip()}")
        return done.stdout

    def about(self, device: str, what: str) -> str:
        """What the kernel says of a network device: a file in /sys/class/net."""
        return pathlib.Path(f"/proc/{self.pid}/root/sys/class/net/{device}/{what}").read_text().strip()

    def counter(self, device: str, name: str) -> int:
        """What the kernel has counted: `tx_bytes`, `rx_bytes`, `tx_packets`…"""
        return int(self.about(device, f"statistics/{name}"))

    def processes(self) -> dict[int, str]:
        """All but the first: pid and name of the program. Zombies do not count."""
        found = {}
        mine = os.readlink(f"/proc/{self.pid}/ns/pid")
        for entry in pathlib.Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == self.pid:
                continue
            with contextlib.suppress(OSError):  # it may have gone
                if os.readlink(entry / "ns" / "pid") == mine and (entry / "cmdline").read_bytes():
                    found[int(entry.name)] = (entry / "comm").read_text().strip()
        return found

    def kill_all(self):
        while alive := self.processes():
            for pid in alive:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.005)

    def end(self):
        """As power does: its processes are gone at once."""
        self._process.stdin.close()
        try:
            self._process.wait(10)
        finally:
            self._process.kill()
            self._process.wait()
            self._process.stdout.close()
            self._process.stderr.close()


class Network:
    """`count` hosts h0, h1… and head, from which jobs start. A context manager."""

    def __init__(self, count: int, folder: pathlib.Path):
        if os.geteuid() != 0:
            raise NotHere("not root: network namespaces need CAP_SYS_ADMIN and CAP_NET_ADMIN")
        for package, tools in PACKAGES.items():
            if not all(map(shutil.which, tools)):
                raise NotHere(f"{' or '.join(tools)} is missing (Debian: {package})")
        assert not folder.is_relative_to("/dev/shm"), f"{folder}: hosts have a /dev/shm of their own and cannot see it"
        self.folder = folder
        self.hosts: list[Host] = []
        self._ends = contextlib.ExitStack()
        names = [f"h{i}" for i in range(count)]
        known = folder / "hosts"
        known.write_text("127.0.0.1 localhost\n" + f"{MGMT}{HEAD} head\n"
                         + "".join(f"{MGMT}{i + 1} {name}\n" for i, name in enumerate(names)))
        try:
            self.head = self._start("head", known)
            self.switch = self._start("switch", known, self.head)
            for net in ("mgmt0", "data0"):
                self._wire(self.switch, "link", "add", net, "type", "bridge", "stp_state", 0)
                self._wire(self.switch, "link", "set", net, "addrgenmode", "none", "up")  # no chatter of IPv6
            self._plug_in(self.head, "mgmt0", f"{MGMT}{HEAD}/24")
            for i, name in enumerate(names):
                host = self._start(name, known, self.head)
                self.hosts.append(host)
                self._plug_in(host, "mgmt0", f"{MGMT}{i + 1}/24")
                self._plug_in(host, "data0", f"{DATA}{i + 1}/24")
            for host in self.hosts:
                self.restore(host)
        except BaseException:
            self.close()
            raise
        self.agent = folder / "agent"
        self.agent.write_text(self._agent())
        self.agent.chmod(0o755)

    def _start(self, *arguments) -> Host:
        host = Host(*arguments)
        self._ends.callback(host.end)
        return host

    @staticmethod
    def _wire(host: Host, *words):
        try:
            host.ip(*words)
        except OSError as error:  # a kernel without bridges or virtual cables
            raise NotHere(str(error)) from error

    def _plug_in(self, host: Host, device: str, address: str):
        port = f"{device}-{host.name}"
        self._wire(self.switch, "link", "add", port, "type", "veth", "peer", "name", device, "netns", host.pid)
        self._wire(self.switch, "link", "set", port, "addrgenmode", "none", "master", device, "up")
        self._wire(host, "address", "add", address, "dev", device)
        self._wire(host, "link", "set", device, "addrgenmode", "none", "up")

    def _agent(self) -> str:
        """Stands in for ssh: «agent HOST COMMAND…», run in head."""
        cases = "".join(f"  {host.name}) pid={host.inner_pid} ;;\n" for host in self.hosts)
        return (f'#!/bin/sh\ncase "$1" in\n{cases}  *) echo "agent: $1: unknown host" >&2; exit 255 ;;\nesac\nshift\n'
                f'exec nsenter -t "$pid" {" ".join(KINDS)} -- /bin/sh -c "$*"\n')

    def launch(self, flavour: str, layout: list[int], argv: list, *, env=None, **options) -> launch.Job:
        """A job with `layout[i]` ranks on host i, numbered host by host, started in head. Between hosts there is TCP
        over data0; ranks of one host share its memory."""
        places = ",".join(f"{host.name}:{ranks}" for host, ranks in zip(self.hosts, layout))
        if flavour == "openmpi":
            more = ["--host", places]
            variables = {
                "OMPI_MCA_btl": "self,vader,tcp",
                "OMPI_MCA_btl_tcp_if_include": "data0",
                "OMPI_MCA_oob_tcp_if_include": "mgmt0",
                "OMPI_MCA_plm": "rsh",
                "OMPI_MCA_plm_rsh_agent": str(self.agent),
                "OMPI_MCA_plm_rsh_no_tree_spawn": "1",
                "OMPI_MCA_orte_tmpdir_base": "/dev/shm",  # the host's own
                "OMPI_MCA_btl_vader_backing_directory": "/dev/shm",
            }
        else:
            more = ["-hosts", places]
            variables = {
                "HYDRA_IFACE": "mgmt0",
                "HYDRA_LAUNCHER": "rsh",
                "HYDRA_LAUNCHER_EXEC": str(self.agent),
                "HYDRA_TMPDIR": "/dev/shm",
                # UCX tells hosts apart by the kernel's boot id, which is one here: no shared memory for UCX. MPICH has
                # its own between ranks of a host.
                "UCX_TLS": "self,tcp",
                "UCX_NET_DEVICES": "data0",
            }
        return launch.launch(flavour, sum(layout), argv, prefix=self.head.enter(), options=more,
                             env=variables | (env or {}), **options)

    def pull(self, host: Host, device: str = "data0"):
        """Pulls the cable at the switch: both ends lose the carrier."""
        self.switch.ip("link", "set", f"{device}-{host.name}", "down")

    def silence(self, host: Host, device: str = "data0"):
        """Packets from and to the host vanish in the switch: its port is one of no net. The carrier stays, nobody is
        told. (100 % loss by netem would be the same, where the kernel has it.)"""
        self.switch.ip("link", "set", f"{device}-{host.name}", "nomaster")

    def power_off(self, host: Host):
        """Nothing leaves the host any more, not even the word that its processes are gone: the agents that wait for
        them stand still, as ssh would wait for ever."""
        for device in ("mgmt0", "data0"):
            self.silence(host, device)
        for pid in self.head.processes():
            with contextlib.suppress(OSError):
                line = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                if line[:3] == [b"nsenter", b"-t", b"%d" % host.inner_pid]:
                    os.kill(pid, signal.SIGSTOP)
        host.kill_all()

    def restore(self, host: Host):
        """As new: plugs in what was pulled, takes away queues, and waits until all is up."""
        with contextlib.suppress(OSError):  # there was none
            host.ip("qdisc", "delete", "dev", "data0", "root", tool="tc")
        for device in ("mgmt0", "data0"):
            self.switch.ip("link", "set", f"{device}-{host.name}", "master", device, "up")
        # The kernel takes up to a second to see that there is a carrier again, at either end.
        deadline = time.monotonic() + 10
        for device in ("mgmt0", "data0"):
            port = f"{device}-{host.name}"
            while (host.about(device, "operstate"), self.switch.about(port, "brport/state")) != ("up", FORWARDING):
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{host.name}: no carrier on {device}")
                time.sleep(0.01)

    def close(self):
        self._ends.close()

    def __enter__(self) -> "Network":
        return self

    def __exit__(self, *_):
        self.close()


def _last_child(pid: int) -> int:
    """unshare and nsenter fork: the process at the end of the line."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        children = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        if not children:
            return pid
        pid = int(children[0])
    raise TimeoutError(pid)
