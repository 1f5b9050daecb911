"""How a spot machine hears that it goes, as `preemption_command` asks it: exit code 0 means soon.

AWS: instance metadata, ``spot/instance-action`` (two minutes ahead). GCP: ``instance/preempted`` (half a minute).
Azure: scheduled events, ``Preempt`` (half a minute).
"""

from __future__ import annotations

NOTICES: dict[str, str] = {
    "aws": (
        "token=$(curl -sf -X PUT -H 'X-aws-ec2-metadata-token-ttl-seconds: 60' "
        'http://169.254.169.254/latest/api/token) && curl -sf -H "X-aws-ec2-metadata-token: $token" '
        "http://169.254.169.254/latest/meta-data/spot/instance-action"
    ),
    "gcp": (
        "curl -sf -H 'Metadata-Flavor: Google' "
        "http://metadata.google.internal/computeMetadata/v1/instance/preempted | grep -q TRUE"
    ),
    "azure": (
        "curl -sf -H 'Metadata: true' "
        "'http://169.254.169.254/metadata/scheduledevents?api-version=2020-07-01' | grep -q Preempt"
    ),
}
