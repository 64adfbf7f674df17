#!/bin/bash
# A Docker engine for `make containers` on a Debian machine that has none, and the image on it:
#
#   ENGRAM_DOCKER=FOLDER tests/docker/engine.sh get|start|stop|cut|env|image|remove
#
#   get      unpacks Docker's packages of Debian's $SUITE (sid) into FOLDER, and makes them run here
#   start    starts the engine
#   stop     stops it, as when the machine is switched off
#   cut      kills it with all that runs in it, as when the power fails
#   env      prints the variables by which `docker` finds it
#   image    makes a base image of Debian's packages, downloads packages of Python, builds `engram`
#   remove   stops the engine and removes its network; FOLDER stays
#
# As root, with 12 GB of disk. The engine has a network namespace of its own, without a way out: its
# rules and addresses never touch the machine's.
set -euo pipefail
project=$(cd "$(dirname "$0")/../.." && pwd)
W=${ENGRAM_DOCKER:?a folder with room for 12 GB} S=${SUITE:-sid}
K=$W/$S R=$W/run D=$W/data C=$W/config N=engram-docker
socket=unix://$R/docker.sock

mirror() { awk '/^URIs:/{print $2; exit}' /etc/apt/sources.list.d/debian.sources; }

get() {
  [ -x "$K/bin/docker-init" ] && return
  apt-get install --yes --no-install-recommends debootstrap patchelf iproute2 >/dev/null
  local apt=$W/apt lib=$K/usr/lib/x86_64-linux-gnu file name
  mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial" "$K/bin"
  : >"$apt/status"
  echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $(mirror) $S main" >"$apt/sources.list"
  local options=(
    -qq -o "Dir::Etc::sourcelist=$apt/sources.list" -o Dir::Etc::sourceparts=/dev/null
    -o "Dir::State::lists=$apt/lists" -o "Dir::State::status=$apt/status" -o "Dir::Cache=$apt/cache"
  )
  apt-get "${options[@]}" update
  apt-get "${options[@]}" --yes --no-install-recommends --download-only install \
    docker.io docker-cli docker-compose docker-buildx containerd runc tini iptables >/dev/null
  for file in "$apt/cache/archives"/*.deb; do dpkg -x "$file" "$K"; done
  # Their C library is newer than this machine's: they are told to use their own.
  for file in "$K"/usr/bin/* "$K"/usr/sbin/* "$K"/usr/libexec/docker/cli-plugins/*; do
    [ -f "$file" ] && [ ! -L "$file" ] && readelf -l "$file" 2>/dev/null | grep -q interpreter || continue
    case $file in *systemd* | *debconf*) continue ;; esac
    patchelf --set-interpreter "$lib/ld-linux-x86-64.so.2" --force-rpath --set-rpath "$lib:$lib/systemd" "$file"
  done
  for name in runc dockerd docker-proxy containerd containerd-shim-runc-v2 docker docker-compose docker-buildx; do
    ln -sf "$(find "$K/usr" -name "$name" -type f -perm -100 | head -1)" "$K/bin/$name"
  done
  for name in iptables ip6tables; do
    for file in '' -save -restore; do ln -sf "$K/usr/sbin/xtables-nft-multi" "$K/bin/$name$file"; done
  done
  ln -sf "$K/usr/bin/tini-static" "$K/bin/docker-init"
}

start() {
  mkdir -p "$R" "$D" "$C/cli-plugins"
  ln -sf "$K/bin/docker-compose" "$K/bin/docker-buildx" "$C/cli-plugins/"
  [ -e "/run/netns/$N" ] || ip netns add "$N"
  nsenter "--net=/run/netns/$N" ip link set lo up
  cd /
  XTABLES_LIBDIR=$K/usr/lib/x86_64-linux-gnu/xtables PATH=$K/bin:$PATH \
    nohup nsenter "--net=/run/netns/$N" unshare --mount --propagation private \
    "$K/bin/dockerd" --data-root "$D" --exec-root "$R/exec" --pidfile "$R/dockerd.pid" --host "$socket" \
    --storage-driver overlay2 --init-path "$K/bin/docker-init" --userland-proxy-path "$K/bin/docker-proxy" \
    >>"$W/dockerd.log" 2>&1 </dev/null &
  for _ in $(seq 240); do
    DOCKER_HOST=$socket "$K/bin/docker" version >/dev/null 2>&1 && return
    sleep 0.5
  done
  tail -5 "$W/dockerd.log" >&2
  return 1
}

gone() { while [ -e "/proc/$1" ]; do sleep 0.2; done; }

stop() {
  local engine
  engine=$(cat "$R/dockerd.pid")
  kill "$engine"
  gone "$engine"
}

cut() {
  local all engine
  engine=$(cat "$R/dockerd.pid")
  # Containers keep the engine's folder on their command line by their shims: those, and what they hold.
  all=$(pgrep --full -- "$R/exec/") || true
  kill -9 "$engine" $(for one in $all; do pgrep --parent "$one" || true; done) $all 2>/dev/null || true
  for one in "$engine" $all; do gone "$one"; done
  rm -f "$R/dockerd.pid" "$R/docker.sock"
}

env() { printf 'DOCKER_HOST=%s\nDOCKER_CONFIG=%s\nPATH=%s\n' "$socket" "$C" "$K/bin:$PATH"; }

base() {
  docker image inspect engram-base >/dev/null 2>&1 && return
  local T=$W/rootfs
  rm -rf "$T"
  debootstrap --variant=minbase --include=python3.11,python3,python3-venv,ca-certificates,netbase,tzdata \
    bookworm "$T" "$(mirror)" >"$W/debootstrap.log" 2>&1
  rm -rf "$T"/var/cache/apt/archives/*.deb "$T"/var/lib/apt/lists/* "$T"/usr/share/{doc,man}/*
  ln -sf python3 "$T/usr/bin/python"
  tar -C "$T" --numeric-owner --exclude='./dev/*' --exclude='./proc/*' --exclude='./sys/*' -c . |
    docker import --change 'ENV LANG=C.UTF-8' - engram-base
  rm -rf "$T"
}

# Packages come from an index of files, on the loopback of the engine's namespace.
image() {
  export DOCKER_HOST=$socket DOCKER_CONFIG=$C PATH=$K/bin:$PATH
  base
  local python=$project/.venv/bin/python server
  mkdir -p "$W/wheels"
  cd "$project"
  "$python" -m pip download -q -d "$W/wheels" -c constraints.txt torch torchvision '.[operate,privacy]'
  "$python" -m pip download -q -d "$W/wheels" 'setuptools>=77'
  cd "$W/wheels"
  nsenter "--net=/run/netns/$N" "$python" -m http.server --bind 127.0.0.1 8081 >"$W/index.log" 2>&1 &
  server=$!
  trap "kill $server 2>/dev/null || true" EXIT
  printf '[global]\nno-index = true\nfind-links = http://127.0.0.1:8081/\n' >"$W/pip.conf"
  docker build --network host --file "$project/docker/Dockerfile" --build-arg BASE_IMAGE=engram-base \
    --build-arg TORCH=cpu --secret "id=pip,src=$W/pip.conf" --tag engram "$project"
}

remove() {
  stop
  ip netns del "$N"
}

case ${1:-} in
get | start | stop | cut | env | image | remove) "$1" ;;
*) sed -n 2,16p "$0" ;;
esac
