FROM python:3.13-slim

WORKDIR /srv/fencepost
COPY pyproject.toml constraints.txt README.md ./
COPY app app
COPY migrations migrations
COPY clients/python/src clients/python/src
RUN pip install --no-cache-dir -c constraints.txt . \
    && useradd --system --no-create-home --shell /usr/sbin/nologin fencepost

USER fencepost
EXPOSE 8000
# The database stands elsewhere: FENCEPOST_DATABASE_URL has to be given.
ENTRYPOINT ["fencepost"]
CMD ["serve"]
