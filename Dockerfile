# The gateway as an image: docker build --tag ullage .
# It runs as user 10001 with a read-only root; what it keeps lies in the volume /var/lib/ullage.
FROM python:3.13.16-slim-trixie AS python

FROM python AS build
WORKDIR /build
COPY pyproject.toml requirements.lock README.md LICENSE ./
COPY policies policies
COPY proxy proxy
# An environment without pip, in the versions that everything is tested with; nothing is compiled but the wheel of ullage.
RUN python -m venv --without-pip /opt/ullage \
    && pip --python /opt/ullage/bin/python install --no-cache-dir --disable-pip-version-check --root-user-action ignore \
        --only-binary :all: --constraint requirements.lock '.[encryption,s3]'

FROM python AS runtime
LABEL org.opencontainers.image.title="ullage" \
      org.opencontainers.image.description="An OpenAI-compatible gateway that keeps the context of AI agents small." \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.licenses="MIT"
RUN install --directory --owner 10001 --group 10001 --mode 0700 /var/lib/ullage
COPY --from=build /opt/ullage /opt/ullage
COPY deploy/ullage.toml /etc/ullage/ullage.toml
# A container that listens on its own loopback alone is of no use, so the address is set over every file.
ENV PATH=/opt/ullage/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    HOME=/tmp \
    ULLAGE_CONFIG=/etc/ullage/ullage.toml \
    ULLAGE_HOST=0.0.0.0
USER 10001:10001
WORKDIR /var/lib/ullage
VOLUME /var/lib/ullage
EXPOSE 4410
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 CMD ["python", "-IS", "-c", \
    "import http.client, os; c = http.client.HTTPConnection('127.0.0.1', int(os.environ.get('ULLAGE_PORT') or 4410), timeout=4); c.request('GET', '/readyz'); raise SystemExit(c.getresponse().status != 200)"]
ENTRYPOINT ["ullage"]
CMD ["serve"]
