# The image for what `launch.py render kubernetes` writes (cluster.image): this project in /app, its dependencies.
#
#   docker build -t staleflow:latest .
#   docker build -t staleflow:latest --build-arg EXTRAS=workers,lora,vllm --build-arg CONSTRAINTS=vllm .
#   docker build -t staleflow:latest --build-arg INDEX=https://download.pytorch.org/whl/cpu .   # without GPUs
#
# Not the slim image: triton compiles with gcc. The user is root, since keys are readable by their owner alone.
FROM python:3.11

ARG EXTRAS=workers,lora,datasets
ARG CONSTRAINTS=default
ARG INDEX=
ENV STALEFLOW_NO_INSTALL=1 PYTHONUNBUFFERED=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore

# what `code` rewards run programs in; the container needs --cap-add SYS_ADMIN --security-opt seccomp=unconfined for
# it, which `launch.py check` says where it lacks them (docs/sandbox.md)
RUN apt-get update && apt-get install -y --no-install-recommends bubblewrap && rm -rf /var/lib/apt/lists/*

WORKDIR /app
# what is installed changes less often than the code: this layer is made again only with one of these files
COPY pyproject.toml launch.py ./
COPY install install
COPY constraints constraints
RUN pip install ${INDEX:+--extra-index-url "$INDEX"} -c "constraints/$CONSTRAINTS.txt" -e ".[$EXTRAS]"

COPY . .
RUN pip install --no-deps -e .

ENTRYPOINT ["python", "launch.py"]
CMD ["--help"]
