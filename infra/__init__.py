"""The AWS CDK app: what a deployment of the kit consists of. ``python -m infra.app``, or ``cdk synth -c stage=dev``."""
