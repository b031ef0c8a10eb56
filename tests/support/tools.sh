# Sourced by tests/run and .ci/run: tools that no Debian package has, in a directory outside the tree.

tools=${CNS_TOOLS:-${XDG_CACHE_HOME:-$HOME/.cache}/cns-tools}
mkdir -p "$tools/bin"
export PATH=$tools/bin:$PATH

buf_version=1.75.0
deny_version=0.20.2
fuzz_version=0.13.2

# buf, from the wheel that its makers publish.
need_buf() {
    [[ $(buf --version 2>/dev/null) == "$buf_version" ]] && return
    rm -rf "$tools/buf"
    python3 -m venv "$tools/buf"
    "$tools/buf/bin/pip" install --quiet --disable-pip-version-check "buf-bin==$buf_version"
    ln -sf "$tools/buf/bin/buf" "$tools/bin/buf"
}

need_deny() {
    [[ $(cargo deny --version 2>/dev/null) == "cargo-deny $deny_version" ]] && return
    cargo install --quiet --locked --root "$tools" "cargo-deny@$deny_version"
}

need_fuzz() {
    [[ $(cargo fuzz --version 2>/dev/null) == "cargo-fuzz $fuzz_version" ]] && return
    cargo install --quiet --locked --root "$tools" "cargo-fuzz@$fuzz_version"
}
