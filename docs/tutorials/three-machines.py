# %% [markdown]
# # A federation of three machines
#
# Here each client is a process of its own that speaks gRPC, with a key and a memory that only it can read. All of it
# happens on this machine's loopback interface; on real machines only the address differs.
#
# ## Keys
#
# `init-federation` makes a certificate authority, a certificate for the server, and a folder with a key for each
# client. (On a server you would choose a port, such as 9092.)

# %%
import socket

with socket.socket() as probe:
    probe.bind(("127.0.0.1", 0))
    address = f"127.0.0.1:{probe.getsockname()[1]}"


# %%
import subprocess


def terminal(command):
    """Runs a command as in a terminal, and stops the page if it fails."""
    done = subprocess.run(command.split(), check=False, capture_output=True, text=True)
    print(done.stdout if done.returncode == 0 else done.stderr)
    done.check_returncode()


terminal(f"engram init-federation fed --clients 3 --superlink {address}")

# %% [markdown]
# ## Start
#
# The *server* is where nodes connect; a *node* is a client. The server lets in whose public key is in
# `fed/server/clients`.

# %%
import time

processes = []


def start(name, command):
    log = open(f"{name}.log", "w")
    process = subprocess.Popen(command.split(), stdout=log, stderr=log, start_new_session=True)
    processes.append(process)


start("server", "engram superlink fed/server")
for number in range(3):
    start(f"client-{number}", f"engram node fed/client-{number}")

# %% [markdown]
# Who is there?

# %%
until = time.monotonic() + 60
while open("client-0.log").read().count("connected") < 1 and time.monotonic() < until:
    time.sleep(0.5)
time.sleep(2)
terminal("engram status fed/server")

# %% [markdown]
# ## Run
#
# The command is the one of a simulation, with `--federation`. Each client holds its share of the digits; on real
# machines, `engram node fed/client-0 --data csv:mine.csv` brings its own, which no other machine sees.

# %%
settings = {
    "num-rounds": 5,
    "local-epochs": 2,
    "num-clients": 3,
    "clients-per-round": 3,
    "partition": "iid",
}
given = " ".join(f"--set {key}={value}" for key, value in settings.items())
terminal(f"engram run ditto --federation fed/server {given} --out runs/fed")

# %% [markdown]
# Who took part, and what did it cost?

# %%
terminal("engram status runs/fed")

# %% [markdown]
# `ditto` gives each client a model of its own, in the client's folder; the server has never seen it:

# %%
terminal("engram memory list fed/client-0")

# %% [markdown]
# ## The same numbers as in a simulation
#
# Randomness depends on the seed, the round and the client alone. So one process with the same settings must find
# the same:

# %%
import engram

deployed = engram.load_run("runs/fed")
same = {key.replace("-", "_"): value for key, value in settings.items()}
simulated = engram.simulate(method="ditto", progress=False, **same)
print(deployed.clients["accuracy"].tolist(), simulated.clients["accuracy"].tolist())
assert abs(deployed.clients["accuracy"] - simulated.clients["accuracy"]).max() < 1e-6

# %% [markdown]
# ## Stop
#
# A node reconnects for as long as it takes, so it runs until it is told to end.

# %%
for process in reversed(processes):
    process.terminate()
print([process.wait(timeout=30) is not None for process in processes])

# %% [markdown]
# [Deployment](../deployment.md) says what happens when something fails, how clients join later, and how to do the
# same in containers. On several machines, copy each `fed/client-N` to its machine by hand, and keep `fed/ca.key` in a
# safe place.
