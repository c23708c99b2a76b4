"""A private network for a stage: without access to the internet, and with endpoints to the AWS services."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import aws_cdk as cdk
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_iam as iam
from aws_cdk import aws_logs as logs
from constructs import Construct

from infra.checks import acknowledge_resources
from infra.constructs.access import allow

if TYPE_CHECKING:
    from infra.config import VpcConfig

# What functions and jobs call, beside S3, which has a gateway that costs nothing.
_SERVICES: Final = {
    "Logs": ec2.InterfaceVpcEndpointAwsService.CLOUDWATCH_LOGS,
    "Monitoring": ec2.InterfaceVpcEndpointAwsService.CLOUDWATCH_MONITORING,
    "Glue": ec2.InterfaceVpcEndpointAwsService.GLUE,
    "Emr": ec2.InterfaceVpcEndpointAwsService.EMR_SERVERLESS,
    "Sts": ec2.InterfaceVpcEndpointAwsService.STS,
    "XRay": ec2.InterfaceVpcEndpointAwsService.XRAY,
}


class Network(Construct):
    """Private subnets in several zones, with one security group for all code of the stage.

    Attributes:
        vpc: the network.
        group: of functions and jobs. Its members reach each other, as Spark's driver and executors must.
    """

    def __init__(self, scope: Construct, construct_id: str, *, config: VpcConfig, flow_log: logs.ILogGroup) -> None:
        super().__init__(scope, construct_id)
        self.vpc = ec2.Vpc(
            self,
            "Vpc",
            ip_addresses=ec2.IpAddresses.cidr(config.cidr),
            max_azs=config.zones,
            nat_gateways=0,
            subnet_configuration=[
                ec2.SubnetConfiguration(name="private", subnet_type=ec2.SubnetType.PRIVATE_ISOLATED, cidr_mask=24)
            ],
            gateway_endpoints={"S3": ec2.GatewayVpcEndpointOptions(service=ec2.GatewayVpcEndpointAwsService.S3)},
            restrict_default_security_group=False,  # would need a function of the CDK's own; nothing uses that group
        )
        self.vpc.add_flow_log("Flow", destination=ec2.FlowLogDestination.to_cloud_watch_logs(flow_log))
        self.group = ec2.SecurityGroup(
            self, "Group", vpc=self.vpc, description="Functions and jobs of brokerless", allow_all_outbound=False
        )
        self.group.add_ingress_rule(self.group, ec2.Port.all_tcp(), "Between Spark's driver and executors")
        self.group.add_egress_rule(self.group, ec2.Port.all_tcp(), "Between Spark's driver and executors")
        self.group.add_egress_rule(ec2.Peer.any_ipv4(), ec2.Port.tcp(443), "To endpoints: there is no other way out")
        endpoints = ec2.SecurityGroup(
            self, "Endpoints", vpc=self.vpc, description="Endpoints of AWS services", allow_all_outbound=False
        )
        endpoints.add_ingress_rule(self.group, ec2.Port.tcp(443), "From functions and jobs")
        for name, service in _SERVICES.items():
            self.vpc.add_interface_endpoint(name, service=service, security_groups=[endpoints], open=False)

    def of_functions(self) -> dict[str, Any]:
        """Return the arguments that put a Lambda function into this network."""
        isolated = ec2.SubnetSelection(subnet_type=ec2.SubnetType.PRIVATE_ISOLATED)
        return {"vpc": self.vpc, "vpc_subnets": isolated, "security_groups": [self.group]}

    @property
    def subnet_ids(self) -> list[str]:
        """The ids of the private subnets."""
        return [subnet.subnet_id for subnet in self.vpc.isolated_subnets]

    def allow_interfaces(self, role: iam.Role) -> None:
        """Allow a function or a job to attach to the network's subnets."""
        ec2_arn = f"arn:aws:ec2:{cdk.Aws.REGION}:{cdk.Aws.ACCOUNT_ID}"
        interfaces = f"{ec2_arn}:network-interface/*"
        statements = {
            "ec2:CreateNetworkInterface": [
                *(f"{ec2_arn}:subnet/{subnet}" for subnet in self.subnet_ids),
                f"{ec2_arn}:security-group/{self.group.security_group_id}",
                interfaces,
            ],
            "ec2:CreateTags": [interfaces],
            "ec2:DeleteNetworkInterface": [interfaces],
        }
        for action, resources in statements.items():
            allow(role, [action], resources)
        looks = ["NetworkInterfaces", "SecurityGroups", "Subnets", "VpcEndpoints", "RouteTables", "VpcAttribute"]
        actions = [f"ec2:Describe{what}" for what in looks]
        allow(role, actions, ["*"])
        acknowledge_resources(role, [interfaces, "*"], "AWS makes up ids of interfaces; describing knows no resources.")
