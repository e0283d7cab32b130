# Serves a model on port 8000, without a network: docs/serve.md says how to build and start it.
FROM python:3.11-slim AS build
RUN python -m venv /opt/graphslice
ENV PATH=/opt/graphslice/bin:$PATH PIP_NO_CACHE_DIR=1
COPY constraints.txt /src/
# PyPI's torch brings gigabytes of CUDA. Its index for CPUs has other versions of what torch needs than constraints.txt.
RUN pip install --no-deps --index-url https://download.pytorch.org/whl/cpu -c /src/constraints.txt torch
COPY . /src
RUN pip install -c /src/constraints.txt "/src[serve]"

FROM python:3.11-slim
# RDKit draws with these.
RUN apt-get update && apt-get install --yes --no-install-recommends libexpat1 libxext6 libxrender1 \
    && rm -rf /var/lib/apt/lists/*
COPY --from=build /opt/graphslice /opt/graphslice
ENV PATH=/opt/graphslice/bin:$PATH
RUN useradd --create-home --uid 1000 graphslice
USER graphslice
# Compiles the kernels for the processor that builds the image; another one compiles them when the container starts.
RUN graphslice predict adme CCO
EXPOSE 8000
HEALTHCHECK --start-period=3m --start-interval=1s --timeout=5s \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/ready')"]
ENTRYPOINT ["graphslice", "serve", "--host", "0.0.0.0"]
CMD ["adme"]
