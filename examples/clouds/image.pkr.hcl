# A VM image that has Scavenger and all that it requires, so that VMs install nothing when they boot.
#
#   scavenger image build                        # with --extra parquet for jobs that read Parquet files
#   packer init image.pkr.hcl
#   packer build -only=amazon-ebs.scavenger -var region=us-east-1 image.pkr.hcl
#   packer build -only=googlecompute.scavenger -var project=PROJECT -var zone=us-central1-a image.pkr.hcl
#   export SCAVENGER_IMAGE=ami-...               # or projects/PROJECT/global/images/scavenger-...
#
# An image of another version is used as well: VMs then install the wheel, and what it requires in other versions.

packer {
  required_plugins {
    amazon = {
      source  = "github.com/hashicorp/amazon"
      version = ">= 1.3"
    }
    googlecompute = {
      source  = "github.com/hashicorp/googlecompute"
      version = ">= 1.1"
    }
  }
}

variable "folder" {
  type        = string
  default     = "build"
  description = "What `scavenger image` has written."
}

variable "region" {
  type    = string
  default = "us-east-1"
}

variable "project" {
  type    = string
  default = ""
}

variable "zone" {
  type    = string
  default = "us-central1-a"
}

locals {
  name = "scavenger-${formatdate("YYYYMMDD-hhmm", timestamp())}"
}

source "amazon-ebs" "scavenger" {
  region        = var.region
  instance_type = "c5.large"
  ssh_username  = "ubuntu"
  ami_name      = local.name

  source_ami_filter {
    filters = {
      name                = "ubuntu/images/hvm-ssd-gp3/ubuntu-noble-24.04-amd64-server-*"
      virtualization-type = "hvm"
    }
    owners      = ["099720109477"] # Canonical
    most_recent = true
  }

  launch_block_device_mappings {
    device_name           = "/dev/sda1"
    volume_size           = 12
    volume_type           = "gp3"
    delete_on_termination = true
  }
}

source "googlecompute" "scavenger" {
  project_id          = var.project
  zone                = var.zone
  machine_type        = "e2-standard-2"
  source_image_family = "ubuntu-2404-lts-amd64"
  ssh_username        = "ubuntu"
  image_name          = local.name
  disk_size           = 12
}

build {
  sources = ["source.amazon-ebs.scavenger", "source.googlecompute.scavenger"]

  provisioner "shell" {
    inline = ["cloud-init status --wait", "mkdir /tmp/scavenger"]
  }

  provisioner "file" {
    source      = "${var.folder}/"
    destination = "/tmp/scavenger"
  }

  provisioner "shell" {
    inline = [
      "sudo sh /tmp/scavenger/install.sh",
      "rm -r /tmp/scavenger",
      # the next VM is another one: it runs its own user data, with keys of its own
      "sudo cloud-init clean --logs --machine-id",
    ]
  }
}
