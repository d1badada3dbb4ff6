#!/usr/bin/python3
"""Checks that each folder includes only itself and folders of a lower level.

    tools/check_layers.py [--root DIR]

Two rules (docs: "Layers" in CONTRIBUTING.md):
  order   a folder of src/ includes itself and lower levels only; folders of one level are siblings
          that don't know each other; public headers include public headers only.
  purity  wire, layout, core and the public value headers name no header of I/O, clocks, threads,
          locks or randomness. This looks at each file's own lines, so a precompiled header or an
          include of an include doesn't count; the symbol check (check_core_symbols.py) sees those.

python/src is bindings: public headers and its own, which lie beside each other in one folder.

lab, sim, tests, bench and examples may include what they like; third_party is not ours.
"""

import argparse
import pathlib
import re
import sys

# What the Python module sees is what any user of the library sees.
BINDINGS = "python"

# Folder of src/ -> level. A new folder gets a line here, with the level it deserves.
LEVELS = {
    "base": 0,
    "wire": 1,
    "layout": 1,
    "core": 2,
    "data_plane": 3,
    "net": 3,
    "runtime": 4,
    "dialect": 5,
    "serve": 7,
    "router": 7,
    BINDINGS: 7,  # python/src
    "cli": 8,
}

# include/kvferry has two groups. Objects are what src/runtime implements; nothing below may know
# them. Values are plain data that every folder may use, base too.
VALUES = "public values"
OBJECTS = "public objects"
PUBLIC = {
    "status.h": VALUES,
    "options.h": VALUES,
    "kv_args.h": VALUES,
    "kv_poll.h": VALUES,
    "ids.h": VALUES,
    "shared_pool.h": VALUES,
    "kv_manager.h": OBJECTS,
    "kv_sender.h": OBJECTS,
    "kv_receiver.h": OBJECTS,
    "bootstrap_server.h": OBJECTS,
}
PUBLIC_LEVELS = {VALUES: 0, OBJECTS: 4}

# (who, whom) of one level that is allowed all the same.
SAME_LEVEL_ALLOWED = {("base", VALUES), ("runtime", OBJECTS)}

PURE = {VALUES, "wire", "layout", "core"}
IMPURE_HEADERS = [
    (r"(thread|mutex|shared_mutex|condition_variable|atomic|stdatomic\.h|future|semaphore|latch|"
     r"barrier|stop_token|pthread\.h|threads\.h|sched\.h)$", "threads and locks"),
    (r"(fstream|iostream|ostream|istream|print|syncstream|filesystem|fcntl\.h|unistd\.h|dirent\.h)$",
     "input and output"),
    (r"(sys|linux|netinet|arpa|net|asm)/|(poll|netdb|ifaddrs|signal|spawn)\.h$|csignal$",
     "the operating system"),
    (r"(ctime|time\.h)$", "clocks"),
    (r"random$|sodium", "randomness"),
    (r"(zmq|zmq_addon)\.hpp$|zmq\.h$|boost/(asio|beast|process|thread|filesystem)", "sockets"),
    (r"(spdlog|prometheus|CLI|fmt/(os|ostream))(/|\.h|$)", "logs, metrics or the command line"),
]

GENERATED = {"wire/kvferry_generated.h": "src/wire/*.cc"}

SUFFIXES = {".h", ".hpp", ".inc", ".ipp", ".cc", ".cpp", ".cxx", ".c"}
INCLUDE = re.compile(r'^\s*#\s*include\s*(?:"([^"]+)"|<([^>]+)>|(\S.*))')


def includes_of(path):
    """Yields (line number, quoted?, name); name is None for an include through a macro."""
    in_comment = False
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if in_comment:
            if "*/" not in line:
                continue
            line = line.split("*/", 1)[1]
            in_comment = False
        line = re.sub(r"/\*.*?\*/", " ", line)
        if "/*" in line and "//" not in line.split("/*", 1)[0]:
            line = line.split("/*", 1)[0]
            in_comment = True
        match = INCLUDE.match(line)
        if match:
            quoted, angled, _ = match.groups()
            yield number, quoted is not None, quoted or angled


class Checker:
    def __init__(self, root):
        self.root = root
        self.errors = []
        self.include_count = 0

    def error(self, path, line, text):
        self.errors.append(f"{path.relative_to(self.root)}:{line}: {text}")

    def group_of_public(self, path, line, name):
        """Group of include/kvferry/NAME, or None with an error when it has none yet."""
        if name not in PUBLIC:
            self.error(path, line, f"public header '{name}' has no level. Rule: each header of "
                       "include/kvferry is a value or an object; add it to PUBLIC in "
                       "tools/check_layers.py")
            return None
        return PUBLIC[name]

    def group_of_file(self, path):
        relative = path.relative_to(self.root)
        if relative.parts[0] == "include":
            return self.group_of_public(path, 1, "/".join(relative.parts[2:]))
        if relative.parts[0] == BINDINGS:
            return BINDINGS
        if len(relative.parts) < 3:
            self.error(path, 1, "lies in src/ itself. Rule: each file belongs to a folder with a "
                       "level")
            return None
        folder = relative.parts[1]
        if folder not in LEVELS:
            self.error(path, 1, f"folder 'src/{folder}' has no level. Rule: each folder of src/ has "
                       "one; add it to LEVELS in tools/check_layers.py")
            return None
        return folder

    def target_of(self, path, line, quoted, name):
        """The group that an include reaches; None for other people's headers and after an error."""
        if ".." in pathlib.PurePosixPath(name).parts:
            self.error(path, line, f"includes '{name}'. Rule: paths start at src/ or include/, "
                       "without '..'")
            return None
        first, _, rest = name.partition("/")
        if first == "kvferry" and rest:
            return self.group_of_public(path, line, rest)
        if first == "src" or first == "include":
            self.error(path, line, f"includes '{name}'. Rule: paths start inside src/ or include/: "
                       f"write '{rest}'")
            return None
        if quoted and path.is_relative_to(self.root / BINDINGS) and (path.parent / name).exists():
            return BINDINGS
        if first in LEVELS and rest and (quoted or (self.root / "src" / name).exists()):
            return first
        if (self.root / "src" / first).is_dir() and rest:
            self.error(path, line, f"includes '{name}' of folder 'src/{first}', which has no level. "
                       "Rule: each folder of src/ has one; add it to LEVELS in "
                       "tools/check_layers.py")
            return None
        if quoted and (path.parent / name).exists():
            self.error(path, line, f"includes '{name}' next to itself. Rule: paths start at src/: "
                       f"write '{(path.parent / name).relative_to(self.root / 'src')}'"
                       if path.is_relative_to(self.root / "src") else
                       f"includes '{name}' next to itself. Rule: write 'kvferry/{name}'")
        return None

    def check_order(self, path, line, source, target, name):
        if source == target:
            return
        source_level = PUBLIC_LEVELS.get(source, LEVELS.get(source))
        target_level = PUBLIC_LEVELS.get(target, LEVELS.get(target))
        where = f"'{source}' (level {source_level}) includes '{name}' of '{target}' (level " \
                f"{target_level})"
        if source in PUBLIC_LEVELS:
            if target not in PUBLIC_LEVELS:
                self.error(path, line, f"{where}. Rule: public headers include public headers only, "
                           "since src/ is not installed")
                return
            if source == OBJECTS:
                return
        if source == BINDINGS and target not in PUBLIC_LEVELS:
            self.error(path, line, f"{where}. Rule: the bindings include public headers only, as any "
                       "user of the library does")
            return
        if target_level < source_level or (source, target) in SAME_LEVEL_ALLOWED:
            return
        if target_level == source_level:
            self.error(path, line, f"{where}. Rule: folders of one level don't know each other; "
                       "what both need belongs to a lower level")
        else:
            self.error(path, line, f"{where}. Rule: a folder includes itself and lower levels only; "
                       "hand the thing in from above (an interface declared here, implemented there)")

    def check_purity(self, path, line, source, name):
        if source not in PURE:
            return
        for pattern, what in IMPURE_HEADERS:
            if re.match(pattern, name):
                self.error(path, line, f"'{source}' includes <{name}>: {what}. Rule: wire, layout, "
                           "core and the public values do no I/O, read no clock, start no thread, "
                           "take no lock; the runtime does that and hands the result in as an event")
                return

    def check_file(self, path):
        source = self.group_of_file(path)
        if source is None:
            return
        for line, quoted, name in includes_of(path):
            self.include_count += 1
            if name is None:
                self.error(path, line, "includes through a macro. Rule: name the file, so that this "
                           "check can see it")
                continue
            if name.endswith("_generated.h"):
                allowed = GENERATED.get(name)
                if allowed is None or not path.relative_to(self.root).match(allowed):
                    self.error(path, line, f"'{source}' includes the generated header '{name}'. "
                               "Rule: generated headers stay behind the codec: only "
                               f"{allowed or 'files named in GENERATED (tools/check_layers.py)'}")
                continue
            target = self.target_of(path, line, quoted, name)
            if target is not None:
                self.check_order(path, line, source, target, name)
            else:
                self.check_purity(path, line, source, name)

    def run(self):
        files = sorted(path for folder in ("include/kvferry", "src", f"{BINDINGS}/src")
                       for path in (self.root / folder).rglob("*")
                       if path.suffix in SUFFIXES and path.is_file())
        for path in files:
            self.check_file(path)
        return len(files)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--root", type=pathlib.Path,
                        default=pathlib.Path(__file__).resolve().parents[1])
    root = parser.parse_args().root.resolve()
    checker = Checker(root)
    file_count = checker.run()
    for error in checker.errors:
        print(error)
    if file_count == 0:
        print(f"layers: no source files below {root}; is this the root of the tree?")
        return 1
    if checker.errors:
        print(f"layers: {len(checker.errors)} errors in {file_count} files")
        return 1
    print(f"layers: {file_count} files, {checker.include_count} includes, all in order")
    return 0


if __name__ == "__main__":
    sys.exit(main())
