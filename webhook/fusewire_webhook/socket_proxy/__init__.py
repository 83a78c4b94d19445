"""The Docker Engine API, cut down to what the docker actuator needs: ``python -m fusewire_webhook.socket_proxy``.

Whoever may create any container is root on the host, so the webhook does not get Docker's socket. A request is
read, compared with what is allowed, and *said anew*: the engine sees no byte that the proxy has not written itself.
"""
