"""Keep the certificate of the extender: kube-scheduler and the extender identify themselves with it.

Both read it from one Secret, so whoever presents a certificate of its CA may call the verbs. kube-scheduler
reloads its certificate from the mounted Secret, but reads the CAs only when it starts. So its Deployment is
restarted when there is a new CA, before the extender serves a certificate of it.
"""

import hashlib
import ssl
import time
from collections.abc import Callable

from gpufleet.kubernetes import KubeClient
from gpufleet.kubernetes.certificates.keyring import Keyring
from gpufleet.kubernetes.certificates.store import CertificateSpec, SharedCertificates
from gpufleet.kubernetes.client.errors import ObjectNotFound
from gpufleet.runtime.logs import get_logger
from gpufleet.runtime.settings import SchedulerSettings

_log = get_logger("scheduler")

SERVER_NAME = "gpufleet-scheduler"
"""The name in the certificate, for `tlsConfig.serverName` of kube-scheduler, whatever the address."""
CA_ANNOTATION = "gpu.scheduling/extender-ca"
"""Annotation of kube-scheduler's pod template; a change restarts its pods."""


CERTIFICATE_LIFETIME_S = 90 * 86400.0
"""It is renewed after two thirds of that, so nothing expires in a month without the scheduler."""


class ExtenderCertificates(SharedCertificates):
    """The certificate that the extender and kube-scheduler share."""

    def __init__(
        self,
        client: KubeClient,
        settings: SchedulerSettings,
        namespace: str,
        context: ssl.SSLContext,
        clock: Callable[[], float] = time.time,
    ) -> None:
        spec = CertificateSpec(
            namespace, settings.tls_secret, SERVER_NAME, (SERVER_NAME,), CERTIFICATE_LIFETIME_S
        )
        super().__init__(client, spec, context, clock)
        self._deployment = settings.kube_scheduler

    async def publish(self, ring: Keyring) -> None:
        """Restart kube-scheduler if there is a CA that it may not have read."""
        known = self.ring is not None and self.ring.authorities == ring.authorities
        if known or len(ring.authorities) < 2 or not self._deployment:
            return
        digest = hashlib.sha256(ring.bundle).hexdigest()[:16]
        template = {"metadata": {"annotations": {CA_ANNOTATION: digest}}}
        path = f"/apis/apps/v1/namespaces/{self._spec.namespace}/deployments/{self._deployment}"
        try:
            await self._client.write_json(
                "PATCH", path, {"spec": {"template": template}}, "application/merge-patch+json"
            )
        except ObjectNotFound:
            return
        _log.info("kube_scheduler_restarted", deployment=self._deployment, authorities=len(ring.authorities))
