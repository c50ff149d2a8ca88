#!/usr/bin/env bash
# Installs what building and testing need, on Debian 12 as root. Idempotent: does nothing when all is there.
#   tools/setup.sh          packages of the build
#   tools/setup.sh --tests  also those of the tests, and a Python environment in .venv with pinned packages
set -euo pipefail
cd "$(dirname "$0")/.."

packages=(g++ cmake ninja-build ccache pkg-config nlohmann-json3-dev libcli11-dev libfmt-dev libspdlog-dev
          libpcre2-dev libicu-dev libhwy-dev libboost1.81-dev libtomlplusplus-dev libxxhash-dev prometheus-cpp-dev
          libssl-dev libsqlite3-dev patch ca-certificates)
if [[ "${1:-}" == --tests ]]; then
  packages+=(libboost-context1.81-dev libgtest-dev libgmock-dev librapidcheck-dev libbenchmark-dev clang-19 libclang-rt-19-dev python3-venv
             chromium fonts-dejavu-core bubblewrap)
fi

missing=()
for package in "${packages[@]}"; do
  dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
done
if ((${#missing[@]})); then
  echo "setup: installing ${missing[*]}"
  if [[ $EUID -ne 0 ]]; then
    echo "setup: missing packages; install them as root: apt-get install ${missing[*]}" >&2
    exit 1
  fi
  export DEBIAN_FRONTEND=noninteractive
  if ! { apt-get update -qq && apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null; }; then
    echo "setup: apt-get could not install: ${missing[*]}" >&2
    echo "setup: is this machine offline? Install them some other way and run this again." >&2
    exit 1
  fi
fi

# What Debian does not have: structured output is built with it, and left out without.
cmake -P third_party/xgrammar/fetch.cmake ||
  echo "setup: XGrammar is missing: structured output, and its tests, are left out of the build" >&2

if [[ "${1:-}" == --tests ]]; then
  requirements=tests/python/requirements.txt
  if ! cmp -s "$requirements" .venv/installed.txt; then
    echo "setup: Python environment in .venv ($(paste -sd' ' "$requirements"))"
    /usr/bin/python3 -m venv .venv
    if ! .venv/bin/pip install -q --disable-pip-version-check -r "$requirements"; then
      echo "setup: pip could not install $requirements; is this machine offline?" >&2
      exit 1
    fi
    cp "$requirements" .venv/installed.txt
  fi
fi
