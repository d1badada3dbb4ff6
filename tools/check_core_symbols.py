#!/usr/bin/python3
"""Proves on the archives of core, wire and layout that they do no I/O and have no hidden state.

    tools/check_core_symbols.py [--closure ARCHIVE]... ARCHIVE...

Looks at each object of the archives and asks:
  calls    each symbol that it needs from outside must be on the list of harmless ones (memory,
           strings, containers, formatting). What reads clocks, sleeps, locks, starts threads, does
           I/O or draws random numbers is refused; so is everything that nobody has judged yet.
  state    no object may be in a writable section: state belongs to the protocol's own objects.

Symbols of kvferry itself must be defined in one of the archives. An object of a --closure archive
(base) is checked by the same rules as soon as one of the checked objects needs it, as the linker
would pull it in: so pure helpers live in files of their own, apart from clocks and logs.

Look at release archives; sanitizers add calls of their own.
"""

import argparse
import collections
import dataclasses
import re
import subprocess
import sys

# Refused, with the reason; looked at before the allow-list.
FORBIDDEN = [
    (r"(clock_\w+|time|gettimeofday|timespec_get|times|clock|localtime\w*|gmtime\w*|mktime|ftime)$",
     "reads a clock: time comes in as an argument of step()"),
    (r"std::chrono::.*(::now\(\)|tzdb)", "reads a clock: time comes in as an argument of step()"),
    (r"(nanosleep|usleep|sleep|clock_nanosleep|sched_yield|poll|ppoll|select|pselect|epoll_\w+)$",
     "waits: the core never waits"),
    (r"std::this_thread::", "waits: the core never waits"),
    (r"(pthread_\w+|sem_\w+|thrd_\w+|mtx_\w+|__gthr\w+)$", "threads and locks belong to the runtime"),
    (r"std::(thread|jthread|(\w+_)?mutex|condition_variable\w*|__condvar|__once|call_once|future|"
     r"promise|__future_base|__atomic_\w+|__throw_system_error)\b",
     "threads and locks belong to the runtime"),
    (r"__cxa_guard_\w+$", "a function's static object is made under a lock: make it constexpr"),
    (r"(socket|bind|listen|accept4?|connect|send\w*|recv\w*|getaddrinfo|freeaddrinfo|getsockopt|"
     r"setsockopt|shutdown|inet_\w+)$", "sockets belong to net and the data plane"),
    (r"zmq_\w+|zmq::", "sockets belong to net and the data plane"),
    (r"(open|openat|close|read|write|pread\w*|pwrite\w*|readv|writev|lseek\w*|ioctl|fcntl\w*|mmap\w*|"
     r"munmap|memfd_create|unlink|stat|fstat|f?printf|v?fprintf|v?printf|puts|putchar|fputs|fputc|"
     r"fopen\w*|fdopen|fclose|fread|fwrite|fflush|perror|stdin|stdout|stderr|__v?f?printf_chk)(64)?$",
     "input and output belong to the runtime"),
    (r"std::(cout|cerr|clog|cin|ios_base::Init|basic_[io]?f(stream|ilebuf)\b|filesystem)",
     "input and output belong to the runtime"),
    (r"std::basic_(filebuf|[io]?fstream)\b", "input and output belong to the runtime"),
    (r"[^(]*\bfmt::v\d+::(v?print|detail::(v?print|fwrite\w*)|report_\w+|output_file|file|buffered_file)"
     r"\b", "input and output belong to the runtime"),
    (r"spdlog::|CLI::|prometheus::", "logs and metrics belong to the runtime: emit an action"),
    (r"(secure_)?getenv$|setenv$|environ$", "settings come in as Options"),
    (r"(rand|srand|rand_r|random|srandom|[demj]?rand48|getrandom|getentropy|arc4random\w*|"
     r"randombytes\w*|sodium_\w+|crypto_\w+)$",
     "random numbers come from the generator handed in (seeded)"),
    (r"std::random_device", "random numbers come from the generator handed in (seeded)"),
    (r"(system|fork|vfork|exec\w*|posix_spawn\w*|kill|raise|signal|sigaction|exit|_exit|atexit)$",
     "processes and signals belong to the command line"),
    (r"(__cxa_atexit|__cxa_thread_atexit|__tls_get_addr|__dso_handle)$",
     "a global or per-thread object with a constructor or destructor: no hidden state"),
    (r"std::(locale|setlocale|pmr::(get|set)_default_resource)\b|setlocale$", "global state of libc"),
]

ALLOWED = [
    # The C++ runtime: memory, exceptions of the standard library, type information.
    r"operator (new|delete)(\[\])?\(",
    r"__cxa_(allocate_exception|free_exception|throw|rethrow|begin_catch|end_catch|pure_virtual|"
    r"deleted_virtual|throw_bad_array_new_length|call_unexpected|bad_cast|init_primary_exception)$",
    r"(_Unwind_Resume|__gxx_personality_v0|__stack_chk_fail|_GLOBAL_OFFSET_TABLE_|__dynamic_cast|"
    r"_Unwind_\w+)$",
    r"(vtable|typeinfo|typeinfo name) for (__cxxabiv1|std)::",
    r"(vtable|typeinfo|typeinfo name) for (char|int|unsigned int|long|unsigned long|bool|double)",
    # Plain C functions of memory, strings and numbers.
    r"(mem(cpy|move|set|cmp|chr|rchr)|bcmp|str(len|nlen|cmp|ncmp|chr|rchr|str)|abort|__assert_fail|"
    r"v?snprintf|div|ldiv|qsort|bsearch)$",
    r"__(mem(cpy|move|set)|v?snprintf|strn?cpy)_chk$",
    r"(ceil|floor|round|lround|llround|trunc|sqrt|fmod|exp2?|log(2|10|1p)?|pow|ldexp|frexp|fabs)"
    r"[fl]?$",
    # Standard library: strings, containers, conversions, the exceptions they throw.
    r"std::(__cxx11::)?basic_string(_view)?<",
    r"std::__(throw_(?!system_error)\w+|glibcxx_assert_fail|throw_bad_\w+)\(",
    r"std::(terminate|to_chars|from_chars|_Hash_bytes|_Rb_tree_\w+|uncaught_exceptions?)\b",
    r"std::__detail::(_Prime_rehash_policy|_List_node_base|__to_chars|__from_chars|_List_\w+)",
    r"std::__detail::__prime_list$",
    r"std::(__cxx11::)?(logic|runtime|length|out_of_range|domain|range|overflow|underflow)_?(error)?::",
    r"std::(out_of_range|invalid_argument|length_error|bad_\w+|exception)::",
    r"std::nothrow$",
    # What std::shared_ptr asks before it counts: whether the process has a second thread. Never written.
    r"__libc_single_threaded$",
    r"tl::",
    # Formatting into memory, and the message format's run-time part.
    r"[^(]*\bfmt::v\d+::",
    r"flatbuffers::",
]

MUTABLE_SECTIONS = re.compile(r"\.(bss|data|tbss|tdata|sbss|sdata|lbss|ldata)(\.|$)|\*COM\*$")
# Written by the dynamic linker only, then read-only.
RELRO_SECTIONS = re.compile(r"\.data\.rel(\.|$)")
# Constants of other people's headers that are computed at first use and never change afterwards.
# They, and the guards (and only those guards) that protect their computation, are let through.
LAZY_CONSTANTS = re.compile(
    r"boost::detail::(crc_table_t<.*>::get_table\(\)|\w*_crcs<.*>::crc_update\(.*\))::table$")
GUARD = "guard variable for "
# Compiler-made: a guard's object is reported by itself, and DW.ref points to the personality.
IGNORED_OBJECTS = re.compile(rf"({GUARD}|DW\.ref\.)")

# Ours by its own name, not by the types of its arguments.
OWN = re.compile(r"[^(]*\bkvferry(::|_)")

DECIDE = """\
How to decide about a symbol that is 'on no list': if the call is a pure function of its arguments
(memory, strings, numbers), add it to ALLOWED in tools/check_core_symbols.py; if it touches a clock,
a thread, a lock, the system, randomness or global state, move the call to the runtime and hand its
result in as an event or an argument. A kvferry symbol 'not defined in' the archives belongs to a
higher folder: turn the dependency round (emit an action, or take an argument)."""


@dataclasses.dataclass
class Member:
    """One object file of an archive."""
    archive: str
    name: str
    defined: set = dataclasses.field(default_factory=set)
    needed: set = dataclasses.field(default_factory=set)
    mutable: list = dataclasses.field(default_factory=list)

    def __str__(self):
        return f"{self.archive.rsplit('/', 1)[-1]}({self.name})"


def run(command, text=None):
    result = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        print(f"core_symbols: {' '.join(command)} failed: {result.stderr.strip()}")
        sys.exit(1)
    return result.stdout


# "0000000000000000 g     O .bss\t0000000000000008 .hidden name": the flags are seven columns.
SYMBOL = re.compile(r"^[0-9a-f]+ (.{7}) (\S+)\t[0-9a-f]+ (?:\.\w+ )?(.*)$")
MEMBER = re.compile(r"^(.*):\s+file format ")


def read_archive(path):
    members = []
    for line in run(["objdump", "-t", path]).splitlines():
        if match := MEMBER.match(line):
            members.append(Member(path, match.group(1)))
            continue
        match = SYMBOL.match(line)
        if not match or not members:
            continue
        flags, section, name = match.groups()
        member = members[-1]
        if section == "*UND*":
            if name:
                member.needed.add(name)
            continue
        if flags[0] in "gu!" or flags[1] == "w":
            member.defined.add(name)
        # Flags: 'd' marks section names, 'O' objects; thread-local ones carry no type letter.
        is_object = flags[6] == "O" or section.startswith((".tbss", ".tdata")) or section == "*COM*"
        if (is_object and "d" not in flags and MUTABLE_SECTIONS.match(section)
                and not RELRO_SECTIONS.match(section)):
            member.mutable.append((name, section))
    if not members:
        print(f"core_symbols: {path} holds no objects")
        sys.exit(1)
    return members


def judge(name):
    """Returns None for a harmless symbol, else why it is refused."""
    for pattern, reason in FORBIDDEN:
        if re.match(pattern, name):
            return reason
    if OWN.match(name):
        return "not defined in the checked archives"
    if any(re.match(pattern, name) for pattern in ALLOWED):
        return None
    return "on no list"


def has_lazy_constants_only(member, plain):
    """True when each function-local static that the object guards is a known constant."""
    guarded = [plain[name].removeprefix(GUARD) for name, _ in member.mutable
               if plain[name].startswith(GUARD)]
    return bool(guarded) and all(LAZY_CONSTANTS.match(name) for name in guarded)


def closure_of(checked, helpers):
    """The checked objects and those of the helper archives that a linker would add."""
    definers = collections.defaultdict(list)
    for member in helpers:
        for name in member.defined:
            definers[name].append(member)
    defined = set().union(*(member.defined for member in checked))
    reached = list(checked)
    pulled_by = {}
    for member in reached:  # Grows while it is walked.
        for name in sorted(member.needed - defined):
            if definers[name]:
                helper = definers[name][0]
                defined |= helper.defined
                pulled_by[id(helper)] = (member, name)
                reached.append(helper)
    return reached, defined, pulled_by


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("archives", nargs="+", metavar="ARCHIVE")
    parser.add_argument("--closure", action="append", default=[], metavar="ARCHIVE",
                        help="archive whose objects are checked when a checked one needs them")
    options = parser.parse_args()

    checked = [member for path in options.archives for member in read_archive(path)]
    helpers = [member for path in options.closure for member in read_archive(path)]
    reached, defined, pulled_by = closure_of(checked, helpers)

    names = {name for member in reached for name in member.needed | member.defined}
    names |= {name for member in reached for name, _ in member.mutable}
    mangled = sorted(names)
    plain = dict(zip(mangled, run(["c++filt"], "\n".join(mangled) + "\n").splitlines()))

    errors = []
    symbols = set()
    for member in reached:
        via = ""
        if id(member) in pulled_by:
            user, symbol = pulled_by[id(member)]
            via = f" [needed by {user} for {plain[symbol]}]"
        for name in sorted(member.needed - defined):
            symbols.add(name)
            reason = judge(plain[name])
            if name.startswith("__cxa_guard_") and has_lazy_constants_only(member, plain):
                continue
            if reason:
                errors.append(f"{member} calls {plain[name]}: {reason}{via}")
        for name, section in sorted(member.mutable):
            if not (IGNORED_OBJECTS.match(plain[name]) or LAZY_CONSTANTS.match(plain[name])):
                errors.append(f"{member} has the mutable global {plain[name]} in {section}: no hidden "
                              f"state; make it constexpr or a member{via}")
    for error in errors:
        print(error)
    if errors:
        print(DECIDE)
        print(f"core_symbols: {len(errors)} errors in {len(reached)} objects")
        return 1
    print(f"core_symbols: {len(checked)} objects and {len(reached) - len(checked)} that they need, "
          f"{len(symbols)} outside symbols, all harmless; no mutable globals")
    return 0


if __name__ == "__main__":
    sys.exit(main())
