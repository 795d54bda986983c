"""Attacks of sandboxed code. Each is Python source that must end with an exception or a refusal.

It runs with cwd in the only writable directory and gets a dict `world`: paths and addresses that it must not reach.
A successful attack writes the file `won`. It does no harm if it succeeds (a defective sandbox, or tests run as root):
it changes only files of the test, and reverts its changes.
"""

from __future__ import annotations

WON = "open('won', 'w').close()"


def fill(directory: str) -> str:
    return (
        f"import os; p = '{directory}/autoqec-big'\n"
        "try:\n"
        f"    open(p, 'wb').write(bytes(world['tmp'] * 2)); {WON}\n"
        "finally: os.remove(p)\n"
    )


ATTACKS: dict[str, str] = {
    "read a secret file": f"open(world['secret']).read(); {WON}",
    "read it through a link": f"import os; os.symlink(world['secret'], 'l'); open('l').read(); {WON}",
    "read it through a hard link": f"import os; os.link(world['secret'], 'l'); open('l').read(); {WON}",
    "read it through /proc/self/root": f"open('/proc/self/root' + world['secret']).read(); {WON}",
    "list the run directory": f"import os; os.listdir(world['outside']); {WON}",
    "write outside": "open(world['outside'] + '/new', 'w').write('x')",
    "overwrite a file outside": "open(world['secret'], 'w').write('x')",
    "remove a file outside": "import os; os.unlink(world['secret'])",
    "rename a file out": "import os; open('f','w').close(); os.rename('f', world['outside'] + '/new')",
    "change a readable file": "open(world['readable'], 'a').write('x')",
    "change the trusted package": f"import autoqec; open(autoqec.__file__, 'a'); {WON}",
    "write into the home of Python": f"import os, sys; p = sys.prefix + '/planted'; open(p, 'w'); os.remove(p); {WON}",
    "connect over TCP": f"import socket; socket.create_connection(tuple(world['tcp']), 5).sendall(b'x'); {WON}",
    "send over UDP": (
        "import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.sendto(b'x', tuple(world['udp']))"
    ),
    "connect to a Unix socket": f"import socket; socket.socket(socket.AF_UNIX).connect(world['unix']); {WON}",
    "connect to an abstract socket": (
        f"import socket; socket.socket(socket.AF_UNIX).connect(chr(0) + world['abstract']); {WON}"
    ),
    "look up a name": f"import socket; socket.getaddrinfo('localhost', 80); socket.socket(); {WON}",
    "io_uring": f"import ctypes; assert ctypes.CDLL(None).syscall(425, 1, bytes(120)) >= 0; {WON}",
    "see another's environment": (
        "import os\n"
        "for pid in {os.getppid(), 1, *(int(n) for n in os.listdir('/proc') if n.isdigit())}:\n"
        "    try: data = open(f'/proc/{pid}/environ', 'rb').read()\n"
        "    except OSError: continue\n"
        f"    if world['key'].encode() in data: {WON}\n"
    ),
    "find a key in its own environment": f"import os\nif world['key'] in str(os.environ): {WON}",
    "signal a process outside": f"import os; os.kill(world['victim'], 0); {WON}",
    "limit a process outside": (
        f"import resource; resource.prlimit(world['victim'], resource.RLIMIT_NOFILE, (1_000, 1_000)); {WON}"
    ),
    "slow a process outside": (
        "import ctypes, os\n"
        "for slow in (lambda: os.sched_setaffinity(world['victim'], os.sched_getaffinity(0)),\n"
        "             lambda: os.sched_setscheduler(world['victim'], os.SCHED_IDLE, os.sched_param(0)),\n"
        "             lambda: [0][ctypes.CDLL(None).syscall(251, 1, world['victim'], 3 << 13) and 1]):\n"
        "    try: slow()\n"
        "    except (OSError, IndexError): continue\n"
        f"    {WON}\n"
    ),
    "trace a process outside": (
        f"import ctypes; assert ctypes.CDLL(None).ptrace(0x4206, world['victim'], 0, 0) == 0; {WON}"
    ),
    "mount": (
        "import ctypes, os; os.mkdir('m'); c = ctypes.CDLL(None)\n"
        f"assert c.mount(b'none', b'm', b'tmpfs', 0, None) == 0; c.umount2(b'm', 2); {WON}"
    ),
    "unshare namespaces": f"import ctypes; assert ctypes.CDLL(None).unshare(0x10000000) == 0; {WON}",
    "clone into a user namespace": (
        "import ctypes, os\n"
        "pid = ctypes.CDLL(None).syscall(56, 0x10000011, 0, 0, 0, 0)\n"
        "if pid == 0: os._exit(0)\n"
        f"if pid > 0: {WON}\n"
    ),
    "make a device": f"import os, stat; os.mknod('disk', 0o600 | stat.S_IFBLK, os.makedev(7, 0)); {WON}",
    "change root": f"import os; os.chroot('.'); {WON}",
    "make a map in the kernel": (
        "import ctypes, struct; a = struct.pack('=IIII', 2, 4, 4, 1)\n"
        f"assert ctypes.CDLL(None).syscall(321, 0, a, len(a)) >= 0; {WON}"
    ),
    "leave a note in a queue of the kernel": (
        "import ctypes; c = ctypes.CDLL(None); q = c.msgget(0x51454343, 0o1600); assert q >= 0\n"
        f"c.msgctl(q, 0, None); {WON}"
    ),
    "leave a note in a semaphore": (
        "import ctypes; c = ctypes.CDLL(None); q = c.semget(0x51454343, 1, 0o1600); assert q >= 0\n"
        f"c.semctl(q, 0, 0); {WON}"
    ),
    "memory outside the memory limit": f"import os; os.memfd_create('m'); {WON}",
    "fill /dev/shm": fill("/dev/shm"),
    "fill /tmp": fill("/tmp"),
    "plant a file in /": f"import os; open('/planted', 'w').close(); os.remove('/planted'); {WON}",
    "reach another process's memory": (
        f"import os; fd = os.open(f\"/proc/{{world['victim']}}/mem\", os.O_RDWR); {WON}"
    ),
    "run a set-uid program": (
        f"import subprocess\ntext = open('/proc/self/status').read()\nif 'NoNewPrivs:\\t1' not in text: {WON}\n"
    ),
    "change the mode of a foreign file": f"import os; os.chmod(world['secret'], 0o666); {WON}",
    "change the mode of a readable file": f"import os; os.chmod(world['readable'], 0o600); {WON}",
    "change the owner of a foreign file": f"import os; os.chown(world['secret'], os.getuid(), os.getgid()); {WON}",
    "change the times of a foreign file": f"import os; os.utime(world['secret'], (1, 1)); {WON}",
    "change the times of a readable file": f"import os; os.utime(world['readable'], (1, 1)); {WON}",
    "set an extended attribute": f"import os; os.setxattr(world['readable'], 'user.note', b'1'); {WON}",
    "change inode flags": (
        "import fcntl, struct\nf = open('f', 'w'); fcntl.ioctl(f, 0x40086602, struct.pack('L', 0x40))\n"
        f"fcntl.ioctl(f, 0x40086602, struct.pack('L', 0)); {WON}"
    ),
    "watch a foreign directory": (
        "import ctypes, os; c = ctypes.CDLL(None); fd = c.inotify_init1(0); assert fd >= 0\n"
        f"assert c.inotify_add_watch(fd, os.fsencode(world['outside']), 0xfff) >= 0; {WON}"
    ),
    "read the free space of a file system": f"import os; os.statvfs('/'); {WON}",
    "make a set-user-ID file": (
        "import os; os.close(os.open('f', os.O_CREAT | os.O_WRONLY, 0o4755))\n"
        f"assert os.stat('f').st_mode & 0o6000; os.remove('f'); {WON}"
    ),
    "run in real time": f"import os; os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1)); {WON}",
    "keep a capability": (
        "import os; sets = ('CapEff', 'CapPrm', 'CapInh', 'CapAmb') + (('CapBnd',) if os.geteuid() == 0 else ())\n"
        "caps = [line.split()[1] for line in open('/proc/self/status') if line.startswith(sets)]\n"
        f"assert any(int(mask, 16) for mask in caps); {WON}"
    ),
}
