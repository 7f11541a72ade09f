-- kubectl apply keeps the manifest of an object in an annotation, with the values of environment variables.
-- Earlier versions stored it for pods without an owner.
UPDATE workload SET annotations = annotations - 'kubectl.kubernetes.io/last-applied-configuration'
WHERE annotations ? 'kubectl.kubernetes.io/last-applied-configuration';

UPDATE holding SET facts = facts #- '{annotations,kubectl.kubernetes.io/last-applied-configuration}'
WHERE facts -> 'annotations' ? 'kubectl.kubernetes.io/last-applied-configuration';

UPDATE ended_workload SET record = jsonb_set(
    record,
    '{0}',
    (record -> 0) #- '{annotations,kubectl.kubernetes.io/last-applied-configuration}' || (
        SELECT jsonb_object_agg(list, (
            SELECT coalesce(jsonb_agg(
                pod #- '{annotations,kubectl.kubernetes.io/last-applied-configuration}' ORDER BY number
            ), '[]')
            FROM jsonb_array_elements(record -> 0 -> list) WITH ORDINALITY AS pods (pod, number)
        ))
        FROM unnest(ARRAY['pods', 'counted']) AS list
    )
)
WHERE record::text LIKE '%kubectl.kubernetes.io/last-applied-configuration%';
