"""The clouds' price APIs on this machine, with answers as the clouds give them."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit


def product(name: str, usd: float, **changed: str) -> str:
    """One product of Amazon's price list, as text."""
    attributes = {
        "instanceType": name,
        "vcpu": "4",
        "memory": "16 GiB",
        "physicalProcessor": "Intel Xeon Platinum 8175",
        "instanceFamily": "General purpose",
        "operatingSystem": "Linux",
        "tenancy": "Shared",
        "preInstalledSw": "NA",
        "capacitystatus": "Used",
        "regionCode": "us-east-1",
        "currentGeneration": "Yes",
        **changed,
    }
    dimension = {"unit": "Hrs", "pricePerUnit": {"USD": f"{usd:.10f}"}}
    terms = {"OnDemand": {"A.B": {"priceDimensions": {"A.B.C": dimension}}}}
    return json.dumps({"product": {"attributes": attributes}, "terms": terms})


def kind(
    name: str, cpus: int = 4, gib: float = 16.0, gpu: str = "", gpus: int = 0, gpu_gib: int = 16, **more: Any
) -> dict[str, Any]:
    """A type of EC2, as `DescribeInstanceTypes` tells it."""
    device = {
        "name": gpu, "manufacturer": "NVIDIA", "count": gpus, "memoryInfo": {"sizeInMiB": gpu_gib * 1024}
    }  # fmt: skip
    return {
        "instanceType": name,
        "currentGeneration": "true",
        "burstablePerformanceSupported": "true" if name.startswith("t3") else "false",
        "processorInfo": {"supportedArchitectures": ["x86_64"]},
        "vCpuInfo": {"defaultVCpus": cpus},
        "memoryInfo": {"sizeInMiB": int(gib * 1024)},
        "networkInfo": {"networkCards": [{"peakBandwidthInGbps": 12.5}]},
        **({"gpuInfo": {"gpus": [device]}} if gpu else {}),
        **more,
    }


def _xml(name: str, value: object) -> str:
    """As the API of EC2 writes it: lists have items."""
    if isinstance(value, dict):
        value = "".join(_xml(key, each) for key, each in value.items())
    elif isinstance(value, list):
        value = "".join(_xml("item", each) for each in value)
    return f"<{name}>{value}</{name}>"


def disk(usd: float, *, unit: str = "GB-Mo", **changed: str) -> str:
    """One product of Amazon's price list that is of disks, as text."""
    attributes = {"volumeApiName": "gp3", "regionCode": "us-east-1", **changed}
    dimension = {"unit": unit, "pricePerUnit": {"USD": f"{usd:.10f}"}}
    terms = {"OnDemand": {"A.B": {"priceDimensions": {"A.B.C": dimension}}}}
    return json.dumps({"product": {"attributes": attributes}, "terms": terms})


def address(usd: float, *, usage: str = "USE1-PublicIPv4:InUseAddress", region: str = "us-east-1") -> str:
    """One product of Amazon's price list that is of public addresses, as text."""
    attributes = {"group": "VPCPublicIPv4Address", "usagetype": usage, "regionCode": region}
    dimension = {"unit": "Hrs", "pricePerUnit": {"USD": f"{usd:.10f}"}}
    terms = {"OnDemand": {"A.B": {"priceDimensions": {"A.B.C": dimension}}}}
    return json.dumps({"product": {"attributes": attributes}, "terms": terms})


def traffic(kind: str, usage: str, *tiers_usd: float, **changed: str) -> str:
    """One product of Amazon's price list that is of traffic, as text.

    Args:
        kind: Its `transferType`.
        usage: Its usage type.
        tiers_usd: Price of a GB, by tier.
    """
    attributes = {"transferType": kind, "usagetype": usage, "fromRegionCode": "us-east-1", **changed}
    dimensions = {
        f"A.B.{tier}": {"unit": "GB", "pricePerUnit": {"USD": f"{usd:.10f}"}}
        for tier, usd in enumerate(tiers_usd)
    }
    terms = {"OnDemand": {"A.B": {"priceDimensions": dimensions}}}
    return json.dumps({"product": {"attributes": attributes}, "terms": terms})


def sku(
    description: str,
    usd: float,
    *,
    usage: str = "OnDemand",
    unit: str = "h",
    regions: tuple[str, ...] = ("us-central1",),
    currency: str = "USD",
    group: str = "",
) -> dict[str, Any]:
    """One SKU of the Cloud Billing API."""
    whole, nanos = divmod(round(usd * 1e9), 10**9)
    price = {"currencyCode": currency, "units": str(whole), "nanos": nanos}
    return {
        "description": description,
        "category": {"resourceFamily": "Compute", "resourceGroup": group, "usageType": usage},
        "serviceRegions": list(regions),
        "pricingInfo": [{"pricingExpression": {"usageUnit": unit, "tieredRates": [{"unitPrice": price}]}}],
    }


@dataclass
class PriceServer:
    """What it answers, and what it was asked.

    Attributes:
        products: Of Amazon's price list, page by page.
        kinds: EC2's types; None for those of the products, as they are in the price list.
        spot: (type, zone, dollars) of the spot price history.
        advisor: The spot advisor's document.
        extras: Of Amazon's price list, what is asked for besides VMs, by service; of EC2 disks.
        skus: Of Google, page by page.
        refuse: Status of refusals; 0 for none.
        refused: What is refused then: `pricing`, `types`, `ec2`, `advisor`, `billing`.
    """

    products: list[list[str]] = field(default_factory=list)
    kinds: list[dict[str, Any]] | None = None
    spot: list[tuple[str, str, str]] = field(default_factory=list)
    advisor: dict[str, Any] = field(default_factory=dict)
    extras: dict[str, list[str]] = field(default_factory=dict)
    skus: list[list[dict[str, Any]]] = field(default_factory=list)
    refuse: int = 0
    refused: tuple[str, ...] = ("pricing", "types", "ec2", "advisor", "billing")
    asked: list[dict[str, Any]] = field(default_factory=list)
    url: str = ""

    def aws(self, target: str, body: bytes) -> tuple[str, bytes]:
        """Answer to a call of Pricing (JSON) or EC2 (XML)."""
        if "GetProducts" in target:
            question = json.loads(body)
            self.asked.append(question)
            fields = {one["Field"] for one in question["Filters"]}
            if question["ServiceCode"] != "AmazonEC2" or "volumeApiName" in fields:
                found = self.extras.get(question["ServiceCode"], [])
                told = {"FormatVersion": "aws_v1", "PriceList": found}
                return "application/x-amz-json-1.1", json.dumps(told).encode()
            page = int(question.get("NextToken", "0"))
            answer: dict[str, Any] = {"FormatVersion": "aws_v1", "PriceList": self.products[page]}
            if page + 1 < len(self.products):
                answer["NextToken"] = str(page + 1)
            return "application/x-amz-json-1.1", json.dumps(answer).encode()
        self.asked.append({key: values[0] for key, values in parse_qs(body.decode()).items()})
        if b"DescribeInstanceTypes" in body:
            return "text/xml", self._types()
        items = "".join(
            f"<item><instanceType>{name}</instanceType><availabilityZone>{zone}</availabilityZone>"
            f"<productDescription>Linux/UNIX</productDescription><spotPrice>{usd}</spotPrice></item>"
            for name, zone, usd in self.spot
        )
        space = "http://ec2.amazonaws.com/doc/2016-11-15/"
        xml = f'<DescribeSpotPriceHistoryResponse xmlns="{space}"><spotPriceHistorySet>{items}</spotPriceHistorySet>'
        return "text/xml", f"{xml}</DescribeSpotPriceHistoryResponse>".encode()

    def _types(self) -> bytes:
        kinds = self.kinds
        if kinds is None:
            listed = [
                json.loads(text)["product"]["attributes"]
                for page in self.products
                for text in page
                if text != "{}"
            ]
            kinds = [
                kind(
                    one["instanceType"],
                    int(one["vcpu"]),
                    float(one["memory"].removesuffix(" GiB").replace(",", "")),
                )
                for one in {one["instanceType"]: one for one in listed}.values()
            ]
        space = "http://ec2.amazonaws.com/doc/2016-11-15/"
        answer = f'<DescribeInstanceTypesResponse xmlns="{space}">{_xml("instanceTypeSet", kinds)}'
        return f"{answer}</DescribeInstanceTypesResponse>".encode()

    def get(self, path: str, query: dict[str, list[str]]) -> tuple[str, bytes]:
        """Answer to Google's SKUs or the spot advisor."""
        if path.endswith("/skus"):
            self.asked.append({"path": path, **{key: values[0] for key, values in query.items()}})
            page = int(query.get("pageToken", ["0"])[0])
            more = {"nextPageToken": str(page + 1)} if page + 1 < len(self.skus) else {}
            return "application/json", json.dumps({"skus": self.skus[page], **more}).encode()
        return "application/json", json.dumps(self.advisor).encode()


@contextmanager
def serve(server: PriceServer) -> Iterator[PriceServer]:
    """Listen on 127.0.0.1 until the block is left."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            target = self.headers.get("X-Amz-Target", "")
            source = "types" if b"DescribeInstanceTypes" in body else "ec2"
            source = "pricing" if "GetProducts" in target else source
            self._answer(source, *server.aws(target, body))

        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            source = "billing" if parts.path.endswith("/skus") else "advisor"
            self._answer(source, *server.get(parts.path, parse_qs(parts.query)))

        def _answer(self, source: str, kind: str, body: bytes) -> None:
            refuse = server.refuse if source in server.refused else 0
            if refuse and source in ("types", "ec2"):
                kind = "text/xml"
                code = "UnauthorizedOperation" if refuse < 500 else "InternalError"
                error = f"<Error><Code>{code}</Code><Message>no</Message></Error>"
                body = f"<Response><Errors>{error}</Errors><RequestID>1</RequestID></Response>".encode()
            elif refuse:
                kind = "application/json"
                body = json.dumps(
                    {"__type": "AccessDeniedException", "message": "no", "error": {"message": "no"}}
                ).encode()
            self.send_response(refuse or 200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Quiet."""

    listener = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    server.url = f"http://127.0.0.1:{listener.server_port}"
    try:
        yield server
    finally:
        listener.shutdown()
        listener.server_close()
        thread.join()
